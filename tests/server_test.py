#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tiny_server answers: the same for a request alone and among many.

usage: server_test.py TINY_SERVER
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import random
import re
import shlex
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

from server_model import Model
from server_tools import Server, make_llama, read_all, wait_for

PROGRAM = sys.argv.pop(1)
# 48 blocks of 4 tokens: the requests below take 11 to 37 each, so eight at once never fit.
SMALL = ["--blocks", 48, "--block-size", 4, "--max-batch", 8, "--step-tokens", 24,
         "--max-length", 160]


def draw_requests(seed, count):
    """Requests of which many begin alike, some under another salt, and some are repeated."""
    draw = random.Random(seed)
    beginnings = [[draw.randrange(256) for _ in range(draw.randrange(20, 60))] for _ in range(4)]
    requests = []
    for _ in range(count):
        if requests and draw.random() < 0.1:
            requests.append(dict(draw.choice(requests)))
            continue
        tail = [draw.randrange(256) for _ in range(draw.randrange(1, 30))]
        request = {"prompt": draw.choice(beginnings) + tail, "max_tokens": draw.randrange(20, 60),
                   "logprobs": True}
        if draw.random() < 0.2:
            request["salt"] = draw.choice(["a", "b"])
        if draw.random() < 0.3:
            request["priority"] = draw.randrange(101)
        if draw.random() < 0.3:
            request["stop"] = [draw.randrange(256) for _ in range(8)]
        requests.append(request)
    return requests


class Answers(unittest.TestCase):
    def alone(self, request):
        with Server(PROGRAM, "--max-connections", 2) as server:
            return server.complete(**request)

    def test_among_many_as_alone(self):
        requests = draw_requests(seed=5, count=72)
        # The greater part of it is to start a server each time.
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            wanted = list(pool.map(self.alone, requests))
        for answer in wanted:
            self.assertEqual(answer["usage"]["cached_tokens"], 0)
            self.assertEqual(answer["usage"]["preemptions"], 0)
        with Server(PROGRAM, *SMALL) as server:
            start = threading.Barrier(24)

            def client(first):
                connection = server.connect()
                start.wait()
                answers = []
                for i in range(first, len(requests), 24):
                    # Every other one is streamed.
                    answers.append((i, server.complete_by_stream(**requests[i]) if i % 2
                                    else server.complete(connection, **requests[i])))
                connection.close()
                return answers

            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                answers = sorted(sum(pool.map(client, range(24)), []), key=lambda one: one[0])
            for (i, answer), want in zip(answers, wanted):
                with self.subTest(i=i, request=requests[i]):
                    self.assertEqual(answer["tokens"], want["tokens"])
                    # All that went into a token: the same to the last bit.
                    self.assertEqual(answer["logprobs"], want["logprobs"])
                    self.assertEqual(len(want["logprobs"]), len(want["tokens"]))
                    self.assertEqual(answer["finish_reason"], want["finish_reason"])
                    self.assertEqual(answer["usage"]["completion_tokens"], len(want["tokens"]))
            reasons = {want["finish_reason"] for want in wanted}
            self.assertEqual(reasons, {"length", "stop"})
            self.check_that_it_was_tight(server, [answer["usage"] for _, answer in answers])

    def check_that_it_was_tight(self, server, usages):
        """Or nothing was shown."""
        self.assertGreater(sum(usage["preemptions"] for usage in usages), 3)
        self.assertGreater(sum(usage["cached_tokens"] > 0 for usage in usages), 5)
        metrics = server.metrics()
        if metrics is None:
            return
        rows = metrics["lariat_session_appended_tokens_total"]
        print(f"{len(usages)} requests: {metrics['lariat_session_preemptions_total']:.0f} preemptions, "
              f"{metrics['lariat_session_recomputed_tokens_total']:.0f} of {rows:.0f} rows computed "
              f"again, {metrics['lariat_session_hit_tokens_total']:.0f} tokens found cached, "
              f"{metrics['lariat_evicted_blocks_total']:.0f} blocks evicted, "
              f"{metrics['lariat_session_steps_total']:.0f} steps")
        self.assertGreater(rows / metrics["lariat_session_steps_total"], 3)
        self.assertGreater(metrics["lariat_evicted_blocks_total"], 48)
        # The sums are those of the answers, and at rest nothing is held.
        for name, key in (("preemptions", "preemptions"), ("hit_tokens", "cached_tokens"),
                          ("recomputed_tokens", "recomputed_tokens"),
                          ("output_tokens", "completion_tokens")):
            self.assertEqual(metrics[f"lariat_session_{name}_total"],
                             sum(usage[key] for usage in usages), name)
        self.assertEqual(metrics['lariat_session_requests_total{outcome="finished"}'], len(usages))
        self.assertEqual(metrics['lariat_blocks{state="free"}'] +
                         metrics['lariat_blocks{state="idle"}'], 48)
        self.assertEqual(metrics["lariat_sequences"], 0)

    def test_reuse_between_requests(self):
        prompt = list(range(100, 150))
        with Server(PROGRAM, "--block-size", 4) as server:
            first = server.complete(prompt=prompt, max_tokens=12)
            again = server.complete(prompt=prompt, max_tokens=12)
            self.assertEqual(first["usage"]["cached_tokens"], 0)
            self.assertEqual(again["usage"]["cached_tokens"], 48)
            self.assertEqual(again["tokens"], first["tokens"])
            # The answer is cached too, but for its last token.
            more = server.complete(prompt=prompt + first["tokens"] + [7], max_tokens=4)
            self.assertEqual(more["usage"]["cached_tokens"], 60)
            salted = server.complete(prompt=prompt, max_tokens=12, salt="other")
            self.assertEqual(salted["usage"]["cached_tokens"], 0)
            self.assertEqual(salted["tokens"], first["tokens"])

    def test_every_prompt_token_counts(self):
        """The seeded model shows it when a row is taken from elsewhere."""
        draw = random.Random(3)
        with Server(PROGRAM) as server:
            prompt = [draw.randrange(256) for _ in range(60)]
            answer = server.complete(prompt=prompt, max_tokens=20)["tokens"]
            self.assertGreater(len(set(answer)), 8)
            for i in range(0, 60, 7):
                other = prompt[:i] + [(prompt[i] + 1) % 256] + prompt[i + 1:]
                self.assertNotEqual(server.complete(prompt=other, max_tokens=20)["tokens"], answer)


class Documents(unittest.TestCase):
    def test_the_examples(self):
        """Each line that docs/server.md tells to type, without curl."""
        text = (pathlib.Path(__file__).parents[1] / "docs/server.md").read_text(encoding="utf-8")
        lines = re.findall(r"^curl .*", text, re.MULTILINE)
        shown = json.loads(re.search(r"^```json\n(.*?)```", text, re.MULTILINE | re.DOTALL).group(1))
        parser = argparse.ArgumentParser()
        parser.add_argument("-s", action="store_true")
        parser.add_argument("-N", action="store_true")
        parser.add_argument("-d", "--data")
        parser.add_argument("-X", "--request")
        parser.add_argument("url")
        answers = []
        with Server(PROGRAM) as server:
            for line in lines:
                given = parser.parse_args(shlex.split(line)[1:])
                host, _, path = given.url.partition("/")
                self.assertEqual(host, "localhost:8080")
                answers.append(server.ask(given.request or ("POST" if given.data else "GET"),
                                          "/" + path, given.data))
        self.assertEqual([status for status, _ in answers[:4]], [200, 200, 404, 200])
        self.assertIn(answers[4][0], (200, 501))
        self.assertIn("data: [DONE]\n\n", answers[1][1])
        # The tokens themselves may depend on the C library's exp.
        first = answers[0][1]
        self.assertEqual(len(first.pop("tokens")), len(shown.pop("tokens")))
        self.assertEqual(first, shown)


class Checkpoints(unittest.TestCase):
    def test_the_model_is_a_llama(self):
        for options in ({"seed": 1}, {"seed": 2, "dtype": "BF16", "files": 2, "tied": True},
                        {"seed": 3, "heads": 4, "kv_heads": 2}):
            with self.subTest(options), tempfile.TemporaryDirectory() as folder:
                model = Model(*make_llama(folder, **options))
                prompt = [random.Random(4).randrange(48) for _ in range(21)]
                with Server(PROGRAM, "--model", folder, "--block-size", 4, "--step-tokens", 8) as server:
                    answer = server.complete(prompt=prompt, max_tokens=11, logprobs=True)
                answer, logprobs = answer["tokens"], answer["logprobs"]
                logits = model.logits(prompt + answer)
                margins = []
                for i, token in enumerate(answer):
                    row = logits[len(prompt) - 1 + i]
                    best = sorted(row)[-2:]
                    margins.append(best[1] - best[0])
                    # A rounding to fp32 is 6e-8 of a value near 1; 80 of them one way.
                    logprob = row[token] - math.log(sum(map(math.exp, row)))
                    self.assertAlmostEqual(logprobs[i], logprob, delta=5e-6)
                    self.assertTrue(row[token] > best[1] - 1e-5, (i, token, best))
                self.assertGreater(sum(margin > 1e-2 for margin in margins), 8, margins)


class Ending(unittest.TestCase):
    """With a model slow enough that nothing is over too soon."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        make_llama(self.folder.name, layers=6, hidden=128, heads=8, kv_heads=8, head_dim=16,
                   intermediate=384, length=4096)
        self.options = ["--model", self.folder.name, "--blocks", 600]
        self.long = {"prompt": [1, 2, 3], "max_tokens": 4000}

    def begin(self, server):
        connection, news = server.stream(**self.long)
        name = next(news)["id"]
        next(news)
        return connection, news, name

    def wait_until_nothing_runs(self, server, cancelled):
        wait_for(lambda: server.ask("GET", "/healthz")[1]["running"] == 0)
        if metrics := server.metrics():
            self.assertEqual(metrics['lariat_blocks{state="held"}'], 0)
            self.assertEqual(metrics["lariat_sequences"], 0)
            self.assertEqual(metrics['lariat_session_requests_total{outcome="cancelled"}'], cancelled)

    def test_cancel(self):
        with Server(PROGRAM, *self.options) as server:
            # By its id, from another connection.
            connection, news, name = self.begin(server)
            self.assertEqual(server.ask("DELETE", f"/v1/completions/{name}"),
                             (200, {"id": name, "cancelled": True}))
            self.assertEqual(list(news)[-1]["finish_reason"], "cancelled")
            connection.close()
            self.wait_until_nothing_runs(server, 1)
            self.assertEqual(server.ask("DELETE", f"/v1/completions/{name}")[0], 404)
            # By a client that is gone, streaming or not.
            connection, _, _ = self.begin(server)
            connection.sock.close()
            connection.close()
            self.wait_until_nothing_runs(server, 2)
            connection = server.connect()
            connection.request("POST", "/v1/completions", '{"prompt": [4], "max_tokens": 4000}')
            wait_for(lambda: server.ask("GET", "/healthz")[1]["running"] == 1)
            connection.close()
            self.wait_until_nothing_runs(server, 3)
            # One that has closed its side alone is told so.
            body = b'{"prompt": [4], "max_tokens": 4000}'
            with server.socket(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" %
                               len(body) + body) as raw:
                raw.shutdown(socket.SHUT_WR)
                self.assertIn(b'"finish_reason":"cancelled"', read_all(raw))
            self.wait_until_nothing_runs(server, 4)
            self.assertEqual(len(server.complete(prompt=[5], max_tokens=3)["tokens"]), 3)
        # One that waits behind another.
        with Server(PROGRAM, *self.options, "--max-batch", 1) as server:
            connection, _, name = self.begin(server)
            waiting, news = server.stream(prompt=[6], max_tokens=5)
            self.assertEqual(server.ask("GET", "/healthz")[1]["running"], 1)
            server.ask("DELETE", f"/v1/completions/{next(news)['id']}")
            end = list(news)[-1]
            self.assertEqual((end["finish_reason"], end["usage"]["completion_tokens"]),
                             ("cancelled", 0))
            server.ask("DELETE", f"/v1/completions/{name}")
            self.wait_until_nothing_runs(server, 2)
            connection.close()
            waiting.close()

    def test_cancel_among_others(self):
        """Others go on as if nothing had been."""
        request = {"prompt": [9, 8, 7], "max_tokens": 60}
        with Server(PROGRAM, *self.options) as server:
            want = server.complete(**request)["tokens"]
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                begun = [self.begin(server) for _ in range(3)]
                other = pool.submit(server.complete, **request, salt="s")
                for connection, _, name in begun:
                    server.ask("DELETE", f"/v1/completions/{name}")
                    connection.close()
                self.assertEqual(other.result()["tokens"], want)
            self.wait_until_nothing_runs(server, 3)

    def test_a_signal_lets_requests_end(self):
        server = Server(PROGRAM, *self.options, "--grace", 60)
        connection, news = server.stream(prompt=[1, 2, 3], max_tokens=100)
        next(news)
        idle = server.socket()
        server.process.send_signal(signal.SIGINT)
        events = list(news)
        self.assertEqual(events[-1]["finish_reason"], "length")
        self.assertEqual(sum(len(event.get("tokens", ())) for event in events), 100)
        self.assertEqual(server.wait(), (0, ""))
        connection.close()
        idle.close()

    def test_a_signal_cancels_what_takes_too_long(self):
        for grace, signals in ((0.2, 1), (600, 2)):
            server = Server(PROGRAM, *self.options, "--grace", grace)
            connection, news, _ = self.begin(server)
            begin = time.monotonic()
            for _ in range(signals):
                server.process.terminate()
                time.sleep(0.1)
            self.assertEqual(list(news)[-1]["finish_reason"], "cancelled")
            self.assertEqual(server.wait(), (0, ""))
            self.assertLess(time.monotonic() - begin, 10)
            connection.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
