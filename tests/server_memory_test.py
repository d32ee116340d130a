#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tiny_server takes no more memory after many requests than after some.

usage: server_memory_test.py TINY_SERVER COUNT [sanitized]

sanitized: the server looks for leaks itself, at its end, and its memory is not compared.
"""
import concurrent.futures
import json
import random
import sys

from server_tools import Server, wait_for

CLIENTS = 6
# What a heap of many threads gains and loses; a leak of 100 bytes per request would be as much.
MOST_KIB = 1000


def client(server, seed, count):
    draw = random.Random(seed)
    connection = server.connect()
    for _ in range(count):
        body = {"prompt": [draw.randrange(256) for _ in range(draw.randrange(1, 40))],
                "max_tokens": draw.randrange(1, 8), "salt": str(draw.randrange(1000))}
        kind = draw.randrange(10)
        if kind == 0:
            server.complete_by_stream(**body)
        elif kind == 1:  # gone at once
            server.socket(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 60\r\n\r\n" +
                          json.dumps(body)[:60].encode()).close()
        elif kind == 2:
            status, answer = server.ask("POST", "/v1/completions", b'{"prompt": [[')
            assert status == 400, (status, answer)
        elif kind == 3:
            assert server.ask("GET", "/metrics", connection=connection)[0] in (200, 501)
        else:
            answer = server.complete(connection, **body)
            assert len(answer["tokens"]) == body["max_tokens"]
    connection.close()


def main():
    program, count = sys.argv[1], int(sys.argv[2])
    with Server(program, "--blocks", 64, "--max-connections", 40) as server:
        def run(seed, requests):
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                for one in [pool.submit(client, server, seed + i, requests // CLIENTS)
                            for i in range(CLIENTS)]:
                    one.result()
            wait_for(lambda: server.ask("GET", "/healthz")[1]["running"] == 0)
            return server.resident_kib()

        before = run(100, max(count // 4, 600))
        after = run(200, count)
        print(f"{count} requests: {before} KiB before, {after} KiB after")
        if "sanitized" not in sys.argv:
            assert after - before < MOST_KIB, (before, after)


if __name__ == "__main__":
    main()
