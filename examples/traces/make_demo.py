#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes demo.jsonl, a small made-up request trace in Mooncake's format.

Sixteen people talk with one of three assistants: each assistant has a system prompt of its own
(1,024 or 2,048 tokens) that all its conversations share, and each turn's prompt is the whole
conversation so far. A hash id stands for 512 tokens and all before them; the last one of a prompt
may stand for fewer, and is then not met again. The same file comes out every time.
"""
import json
import pathlib
import random

BLOCK = 512


def main():
    rng = random.Random(20)
    ids = iter(range(10**6))
    systems = [[next(ids) for _ in range(blocks)] for blocks in (2, 2, 4)]
    requests = []
    for person in range(16):
        full = list(systems[person % 3])
        length = BLOCK * len(full)
        at = rng.uniform(0, 20000)
        for _ in range(rng.randint(2, 5)):
            length += rng.randint(40, 700)
            while len(full) < length // BLOCK:
                full.append(next(ids))
            partial = [next(ids)] if length % BLOCK else []
            output = rng.randint(16, 240)
            requests.append({"timestamp": int(at), "input_length": length, "output_length": output,
                             "hash_ids": full + partial})
            length += output
            at += rng.uniform(4000, 15000)
    requests.sort(key=lambda request: request["timestamp"])
    path = pathlib.Path(__file__).with_name("demo.jsonl")
    path.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")


if __name__ == "__main__":
    main()
