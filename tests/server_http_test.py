#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tiny_server says to bad requests, slow clients and wrong flags.

usage: server_http_test.py TINY_SERVER [sanitized]
"""
import contextlib
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from server_tools import Server, make_llama, read_all, wait_for, write_safetensors

PROGRAM = sys.argv.pop(1)
# A sanitizer's allocator does not say that there is no room: it ends the program.
SANITIZED = "sanitized" in sys.argv
if SANITIZED:
    sys.argv.remove("sanitized")
GOOD = {"prompt": [1, 2, 3], "max_tokens": 2}


def request(body, *headers, line="POST /v1/completions HTTP/1.1"):
    return "\r\n".join([line, "Host: x", *headers, "", ""]).encode() + body


def parse(data):
    """(status, error text) of a raw answer; (None, "") of none."""
    if not data:
        return None, ""
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    if status == 100:
        return parse(body)
    assert b"connection: close" in head.lower(), data
    assert body.endswith(b"\n") and body.count(b"\n") == 1, body  # one line
    return status, json.loads(body)["error"]


class Running(unittest.TestCase):
    """One server for a test, which must be as good as new after it."""

    arguments = ()

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.server = stack.enter_context(Server(PROGRAM, "--max-body", 3000, "--timeout", 0.6,
                                                 "--max-length", 600, *self.arguments))
        stack.callback(self.check_that_it_still_serves)

    def check_that_it_still_serves(self):
        # Whatever clients did, their threads are free again.
        wait_for(lambda: self.server.ask("GET", "/healthz")[0] == 200)
        if self.server.metrics():
            wait_for(lambda: self.server.metrics()["lariat_server_connections"] == 1)
        self.assertEqual(len(self.server.complete(**GOOD)["tokens"]), 2)

    def send(self, data, half_close=False):
        """Sends raw bytes; (status, error text, seconds)."""
        begin = time.monotonic()
        with self.server.socket(data) as connection:
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            return *parse(read_all(connection)), time.monotonic() - begin


class BadRequests(Running):
    def expect(self, status, words, method, path, body=None, **headers):
        with self.subTest(method=method, path=path, body=str(body)[:60], headers=headers):
            got, answer = self.server.ask(method, path, body, **headers)
            self.assertEqual((got, list(answer)), (status, ["error"]), answer)
            self.assertIn(words, answer["error"])
            self.assertNotIn("\n", answer["error"])

    def test_routes(self):
        self.expect(404, "POST /v1/completions", "GET", "/")
        self.expect(404, "no such path", "POST", "/v1/completion", GOOD)
        self.expect(405, "GET, HEAD", "POST", "/metrics", "x")
        self.expect(405, "POST", "GET", "/v1/completions")
        self.expect(405, "DELETE", "POST", "/v1/completions/cmpl-1", GOOD)
        for name in ("cmpl-99", "cmpl-", "cmpl--1", "cmpl-1x", "1", "cmpl-99999999999999999999"):
            self.expect(404, "this id", "DELETE", f"/v1/completions/{name}")
        self.expect(400, "has a body", "GET", "/healthz", "x")

    def test_bodies(self):
        for body, words in {
                "": "byte 1", "{": "byte 2", '{"prompt": [1,]}': "byte 15", "\xff": "invalid JSON",
                "[" * 2900: "invalid JSON", "[]": "not an object", "3": "not an object",
                "{}": "prompt is missing", '{"prompt": []}': "prompt is missing",
                '{"prompt": "text"}': 'prompt = "text"; allowed: an array',
                '{"prompt": [1, 256]}': "prompt[1] = 256; allowed: a whole number in 0..255",
                '{"prompt": [-1]}': "prompt[0] = -1", '{"prompt": [1.0]}': "prompt[0] = 1.0",
                '{"prompt": [18446744073709551615]}': "prompt[0] = 18446744073709551615",
                '{"prompt": [1e400]}': "invalid JSON", '{"prompt": [null]}': "prompt[0] = null",
                '{"prompt": [1], "max_tokens": 0}': "max_tokens = 0; allowed: a whole number in 1..600",
                '{"prompt": [1], "max_tokens": 601}': "max_tokens = 601",
                '{"prompt": [1], "max_tokens": true}': "max_tokens = true",
                '{"prompt": [1], "max_tokens": 600}': "1 + 600 tokens; allowed: 600 together",
                '{"prompt": [1], "stream": 1}': "stream = 1; allowed: true, false",
                '{"prompt": [1], "logprobs": "yes"}': "logprobs = \"yes\"; allowed: true, false",
                '{"prompt": [1], "salt": 1}': "salt = 1; allowed: a text",
                '{"prompt": [1], "priority": 101}': "priority = 101; allowed: a whole number in 0..100",
                '{"prompt": [1], "stop": [7, "x"]}': 'stop[1] = "x"',
                '{"prompt": [1], "max_token": 3}': 'unknown field "max_token"; allowed: prompt',
        }.items():
            self.expect(400, words, "POST", "/v1/completions", body.encode("latin-1"))
        self.expect(400, "600 + 16 tokens", "POST", "/v1/completions", {"prompt": [1] * 600})

    def test_headers_that_change_nothing(self):
        """What an answer is made into is the library's affair; it must be one."""
        for headers in ({"Range": "bytes=0-1"}, {"Range": "bytes=9999999-"}, {"Range": "bytes=-5"},
                        {"Range": "bytes=0-0,5-6,3-99999999999"}, {"Expect": "100-continue"},
                        {"Accept": "image/png"}, {"Connection": "upgrade", "Upgrade": "h2c"}):
            with self.subTest(headers):
                status, answer = self.server.ask("GET", "/healthz", **headers)
                self.assertEqual((status, answer["status"]), (200, "ok"))
        self.expect(416, "not served", "GET", "/healthz", Range="bytes=x")

    def test_sizes(self):
        self.expect(413, "allowed: 3000 bytes", "POST", "/v1/completions", b" " * 3001)
        self.expect(413, "allowed: 3000 bytes", "POST", "/v1/completions", b" " * 3_000_000)
        # One that is as large as may be is read.
        self.expect(400, "invalid JSON", "POST", "/v1/completions", b" " * 3000)
        for length, status in (("3001", 413), ("9" * 40, 413), ("-1", 400), ("x", 400), ("5x", 400)):
            with self.subTest(length=length):
                self.assertEqual(self.send(request(b"", f"Content-Length: {length}"))[0], status)
        self.assertEqual(self.send(request(b""))[0], 411)
        self.assertEqual(self.send(request(b"", "Transfer-Encoding: gzip"))[0], 501)
        chunked = "Transfer-Encoding: chunked"
        self.assertEqual(self.send(request(b"", chunked, "Content-Length: 3"))[0], 400)
        self.assertEqual(self.send(request(b"3\r\n{  \r\n0\r\n\r\n", chunked))[:2],
                         (400, "invalid JSON at byte 4"))
        self.assertEqual(self.send(request(b"400\r\n" + b" " * 1024 + b"\r\n", chunked) +
                                   b"7d0\r\n" + b" " * 2000 + b"\r\n0\r\n\r\n")[0], 413)
        self.assertEqual(self.send(request(b"1\r\n \r\n" * 20000, chunked))[0], 413)
        self.assertEqual(self.send(request(b"1;" + b"x" * 100_000, chunked))[0], 413)
        self.assertEqual(self.send(request(b"zz\r\n", chunked))[0], 400)
        for header in ("Content-Encoding: gzip", "Content-Type: multipart/form-data; boundary=x"):
            with self.subTest(header):
                self.assertEqual(self.send(request(b"", header, "Content-Length: 9"))[0], 415)

    def test_heads(self):
        for data, status in {
                b"\r\n\r\n": 400, b"nonsense\r\n\r\n": 400, b"GET / HTTP/2.0\r\n\r\n": 400,
                bytes(range(256)) + b"\n\r\n": 400,
                b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n": 414,
                b"GET /" + b"x" * 100_000: 431,  # a line without an end
                request(b"", *[f"a{i}: {'x' * 100}" for i in range(1000)]): 431,
        }.items():
            with self.subTest(data[:30]):
                self.assertEqual(self.send(data)[0], status)


class SlowClients(Running):
    def test_a_head_that_does_not_end(self):
        for data in (b"G", b"GET /healthz HTTP/1.1\r\n", request(b"")[:-2]):
            with self.subTest(data):
                status, why, seconds = self.send(data)
                self.assertEqual((status, why), (408, "the request did not arrive in time"))
                self.assertTrue(0.5 < seconds < 5, seconds)

    def test_a_body_that_does_not_end(self):
        status, why, _ = self.send(request(b"{", "Content-Length: 10"))
        self.assertEqual((status, why), (408, "the body did not arrive in time"))
        status, _, _ = self.send(request(b"5\r\n12", "Transfer-Encoding: chunked"))
        self.assertEqual(status, 408)

    def test_a_drip(self):
        """Each read in time, and the whole not."""
        for begin, more in ((b"GET /", b"x"), (b"GET /healthz HTTP/1.1\r\n", b"a: b\r\n"),
                            (request(b"", "Content-Length: 2000"), b" ")):
            with self.subTest(begin[:20]), self.server.socket(begin) as connection:
                start = time.monotonic()
                connection.settimeout(0.05)
                data = b""
                while not data:
                    with contextlib.suppress(socket.timeout):
                        data = connection.recv(65536)
                    with contextlib.suppress(OSError):
                        connection.sendall(more)
                    self.assertLess(time.monotonic() - start, 10)
                self.assertEqual(parse(data + read_all(connection))[0], 408)

    def test_half_closed(self):
        for data, status in ((b"", None), (b"GET /hea", 400), (request(b"{", "Content-Length: 9"), 400),
                             (request(b""), 411)):
            with self.subTest(data):
                self.assertEqual(self.send(data, half_close=True)[0], status)
        # A whole request is answered, as far as it needs no waiting.
        with self.server.socket(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n") as connection:
            connection.shutdown(socket.SHUT_WR)
            self.assertIn(b'"status":"ok"', read_all(connection))

    def test_idle(self):
        begin = time.monotonic()
        with self.server.socket() as connection:
            self.assertEqual(read_all(connection), b"")
        self.assertTrue(0.5 < time.monotonic() - begin < 5)
        # Also after a request.
        connection = self.server.connect()
        self.assertEqual(self.server.ask("GET", "/healthz", connection=connection)[0], 200)
        self.assertEqual(self.server.ask("GET", "/healthz", connection=connection)[0], 200)
        self.assertEqual(connection.sock.recv(1), b"")
        connection.close()

    def test_a_client_that_does_not_read(self):
        # It may be head or body of an answer that finds no room first.
        for shift in range(4):
            first = b"GET /healthz HTTP/1.1\r\na: %b\r\n\r\n" % (b"b" * shift * 7)
            with self.subTest(shift), self.server.socket(first, timeout=0.3) as connection:
                with contextlib.suppress(OSError):  # a time-out while it blocks, or a reset
                    while True:
                        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n" * 10_000)
                # The client is still there; its thread serves others.
                if self.server.metrics():
                    wait_for(lambda: self.server.metrics()["lariat_server_connections"] == 1)

    def test_several_requests_at_once(self):
        with self.server.socket(b"GET /healthz HTTP/1.1\r\n\r\n" * 3) as connection:
            self.assertEqual(read_all(connection).count(b'"status":"ok"'), 3)


class ManyConnections(Running):
    arguments = ("--max-connections", 3)

    def test_more_than_allowed(self):
        taken = [self.server.socket(b"GET /healthz HTTP/1.1\r\n\r\n") for _ in range(3)]
        for connection in taken:
            self.assertEqual(connection.recv(12), b"HTTP/1.1 200")
        for _ in range(20):
            # The answer comes through although the request is never read.
            self.assertEqual(self.send(request(json.dumps(GOOD).encode(), "Content-Length: 38"))[:2],
                             (503, "all connections are taken, try again later"))
        for connection in taken:
            connection.close()

        def served():
            with contextlib.suppress(http.client.HTTPException, ConnectionError):
                return self.server.ask("GET", "/healthz")[0] == 200
        wait_for(served)

    def test_connections_come_and_go(self):
        for i in range(300):
            self.server.socket(b"GET /heal" if i % 2 else b"").close()


class Usage(unittest.TestCase):
    def expect(self, words, *arguments):
        with self.subTest(arguments):
            port = [] if "--port" in arguments else ["--port", "0"]
            done = subprocess.run([PROGRAM, *port, *map(str, arguments)], text=True,
                                  capture_output=True, check=False, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(words, done.stderr)
            self.assertTrue(done.stderr.startswith("tiny_server: "))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_flags(self):
        self.expect("--nope", "--nope")
        self.expect("argument was not expected: x", "x")
        for flag, value in (("--port", "70000"), ("--blocks", "0"), ("--blocks", "many"),
                            ("--max-connections", "0"), ("--timeout", "0"), ("--seed", "-1")):
            self.expect(flag, flag, value)
        self.expect("max_length = 2000; allowed: up to the model's 1024", "--max-length", 2000)
        if not SANITIZED:
            self.expect("no room", "--blocks", 1 << 24, "--block-size", 1 << 16)
        self.expect("cannot listen on 192.0.2.1:0", "--host", "192.0.2.1")
        with Server(PROGRAM) as server:
            self.expect(f"cannot listen on 127.0.0.1:{server.port}: Address already in use",
                        "--port", server.port)
        done = subprocess.run([PROGRAM, "--help"], capture_output=True, check=True)
        self.assertIn(b"--max-body", done.stdout)

    def test_models(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            model = ("--model", name)
            self.expect("nowhere: no such folder", "--model", folder / "nowhere")
            self.expect("config.json", *model)
            config, weights = make_llama(folder)
            for field, value, words in (("model_type", "mixtral", "model_type"),
                                        ("hidden_act", "gelu", "hidden_act"),
                                        ("attention_bias", True, "attention_bias"),
                                        ("rms_norm_eps", None, "rms_norm_eps"),
                                        ("vocab_size", 47, "model.embed_tokens.weight: shape [48, 24]")):
                (folder / "config.json").write_text(json.dumps({**config, field: value}))
                self.expect(words, *model)
            (folder / "config.json").write_text(json.dumps(config))
            file = folder / "model.safetensors"
            whole = file.read_bytes()
            del weights["lm_head.weight"]
            write_safetensors(file, weights, "F32")
            self.expect("no tensor lm_head.weight", *model)
            file.write_bytes(whole[:-1])
            self.expect("model.safetensors", *model)
            file.unlink()
            self.expect("no model.safetensors", *model)


if __name__ == "__main__":
    unittest.main(verbosity=2)
