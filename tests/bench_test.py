#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `lariat bench` on the CPU at small shapes. (Each run compares its results with a plain loop.)

usage: bench_test.py LARIAT [sanitized]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

LARIAT = sys.argv.pop(1)
# Sanitizers reserve more address space than any limit leaves, so none can be set on them.
SANITIZED = "sanitized" in sys.argv
if SANITIZED:
    sys.argv.remove("sanitized")
KEYS = ["op", "shape", "dtype", "backend", "hot", "pdl", "median_us", "gb_per_s", "tflop_per_s",
        "ceiling", "fraction"]


def bench(*arguments, **environment):
    done = subprocess.run([LARIAT, "bench", *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "LARIAT_BACKEND": "cpu", **environment})
    return done.returncode, done.stdout, done.stderr


class Bench(unittest.TestCase):
    def rows(self, *arguments):
        code, out, err = bench(*arguments, "--json", "-")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_ceilings(self):
        kinds = ("copy,bytes=8192", "read,bytes=8192", "write,bytes=12288", "node",
                 "small-copy", "gemm,size=40,dtype=fp32", "link-down,bytes=4096",
                 "link-up,bytes=4096", "link-both,bytes=4096")
        for threads in ("1", "2"):
            rows = self.rows("ceiling", "--threads", threads,
                             *(word for kind in kinds for word in ("--shape", "kind=" + kind)))
            self.assertEqual(len(rows), len(kinds))
            for row, kind in zip(rows, kinds):
                self.assertEqual(list(row), KEYS + ["threads"] * (threads == "2"))
                self.assertEqual((row["op"], row["fraction"]), ("ceiling", 1))
                self.assertIn("kind=" + kind.partition(",")[0], row["shape"])
                reached = row["tflop_per_s" if "gemm" in kind else "gb_per_s"]
                self.assertEqual(row["ceiling"], reached)
            for row, moved in zip(rows, (16384, 8192, 12288, 0, 8192)):
                self.assertAlmostEqual(row["gb_per_s"] * 1e3 * row["median_us"], moved, 3)
            self.assertAlmostEqual(rows[5]["tflop_per_s"] * 1e6 * rows[5]["median_us"], 2 * 40**3, 3)
        for wrong in ("kind=node,bytes=4096", "kind=copy,size=9", "kind=copy,launch=early",
                      "kind=copy,bytes=4100", "kind=gemm,bytes=4096", "kind=gemm", "kind=lunch"):
            code, _, err = bench("ceiling", "--shape", wrong)
            self.assertEqual(code, 2, wrong)
            self.assertIn("allowed", err, wrong)

    def test_threads(self):
        # 256 tokens are 1 MiB: enough to be shared. Each result is compared before it is timed.
        for op in ("append", "mla-append"):
            row, = self.rows(op, "--threads", "3", "--explain", "--shape", "T=256")
            self.assertRegex("; ".join(row["tuning"]), r"3 threads .*(base|avx2|avx512) vectors")
        for wrong in ("0", "-1", "1025", "many"):
            self.assertEqual(bench("append", "--threads", wrong)[0], 2)

    def test_explain(self):
        code, out, err = bench("append", "--shape", "T=2", "--explain")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"append .*\n +rows by 1 thread, \w+ vectors")
        row, = self.rows("append", "--shape", "T=2", "--explain")
        self.assertEqual(list(row), KEYS + ["tuning"])

    def test_compare(self):
        shapes = ("--shape", "T=2", "--shape", "T=3")
        with tempfile.TemporaryDirectory() as folder:
            old, new = os.path.join(folder, "old.json"), os.path.join(folder, "new.json")
            rows = self.rows("append", *shapes)
            gone = {**rows[0], "shape": "T=9"}
            other = {**rows[0], "op": "swap"}
            rows[0]["median_us"] *= 1e6  # this run is faster by that
            rows[1]["hot"] = False       # another row

            def write(document):
                with open(old, "w", encoding="utf-8") as file:
                    json.dump(document, file)

            write({"date": "2026-01-01", "rows": rows + [gone, other]})
            code, out, err = bench("append", *shapes, "--compare", old, "--json", new,
                                   "--tolerance", "0")
            self.assertEqual(code, 0, err)
            self.assertRegex(out, r"ratio\n *[\d.]+ +[\d.]+ +0\.0+ +append hot bf16 T=2,")
            self.assertRegex(out, r" - +[\d.]+ +append hot bf16 T=3,")
            self.assertRegex(out, r"[\d.]+ +- +append hot bf16 T=9\n")
            self.assertNotIn("swap", out)
            with open(new, encoding="utf-8") as file:
                made = json.load(file)
            self.assertEqual([list(row) for row in made[:2]], 2 * [KEYS + ["old_us", "ratio"]])
            self.assertAlmostEqual(made[0]["ratio"], made[0]["median_us"] / rows[0]["median_us"])
            self.assertIsNone(made[1]["ratio"])
            self.assertEqual([row["shape"] for row in made[2:]], ["T=3,q_heads=0" + rows[1]["shape"][13:], "T=9"])
            self.assertEqual([row["median_us"] for row in made[2:]], [None, None])

            # What a comparison wrote can be compared with: rows without a time are none.
            self.assertEqual(bench("append", *shapes, "--compare", new)[0], 0)
            # Slower than allowed: a failed check, and all is said; without --tolerance it is none.
            rows[0]["median_us"] = 1e-9
            write(rows)
            code, _, err = bench("append", *shapes, "--compare", old, "--tolerance", "5")
            self.assertEqual(code, 1)
            self.assertRegex(err, r"append hot bf16 T=2,.*more than --tolerance 5 allows")
            self.assertEqual(bench("append", *shapes, "--compare", old)[0], 0)
            # A bound on nothing is no bound.
            write([])
            code, _, err = bench("append", *shapes, "--compare", old, "--tolerance", "5")
            self.assertEqual(code, 2)
            self.assertIn("has none of these rows", err)
            for document in ({"a": 1}, [1], [{"op": "append"}], [{**rows[0], "op": 1}], "x"):
                write(document)
                code, out, err = bench("append", "--compare", old)
                self.assertEqual((code, out), (2, ""), document)
                self.assertIn("--compare", err)
            for wrong in (("--compare", os.path.join(folder, "none")), ("--tolerance", "5"),
                          ("--compare", ""), ("--compare", old, "--tolerance", "-1"),
                          ("--compare", old, "--tolerance", "nan")):
                code, out, err = bench("append", *wrong)
                self.assertEqual((code, out), (2, ""), wrong)

    def test_append(self):
        shapes = ["T=3,q_heads=2,kv_heads=1,k_dim=64,v_dim=32,in=fp32",
                  "T=70,dtype=fp16,in=fp16,style=interleaved,rotary_dim=64",
                  "T=5,dtype=fp32,in=fp32,rotary_dim=0,k_dim=6,v_dim=10,block=1"]
        rows = self.rows("append", *(word for shape in shapes for word in ("--shape", shape)))
        self.assertEqual([row["dtype"] for row in rows], ["bf16", "fp16", "fp32"])
        for row in rows:
            self.assertEqual(list(row), KEYS)
            self.assertEqual((row["op"], row["backend"], row["hot"]), ("append", "cpu", True))
            self.assertGreater(row["median_us"], 0)
            self.assertAlmostEqual(row["fraction"], row["gb_per_s"] / row["ceiling"])
        # K and V read and written once, slot, position and table row of 3 tokens, q both ways.
        moved = 3 * (96 * (4 + 2) + 2 * 128 * 4 + 12 + 64 * 4)
        self.assertAlmostEqual(rows[0]["gb_per_s"] * 1e3 * rows[0]["median_us"], moved, 3)

    def test_launches(self):
        shapes = [f"T=2,launch={launch}" for launch in ("off", "wait", "early")]
        for op in ("append", "rope-update"):
            rows = self.rows(op, *(word for shape in shapes for word in ("--shape", shape)))
            self.assertEqual([row["shape"].partition("launch=")[2] for row in rows],
                             ["off", "wait", "early"])
            self.assertEqual([row["pdl"] for row in rows], 3 * [False])  # not on the CPU
        rows = self.rows("mla-append", "--shape", "T=2", "--shape", "T=2,launch=off")
        self.assertEqual([row["shape"].partition("launch=")[2] for row in rows], ["wait", "off"])

    def test_rope_update(self):
        dtypes = ("fp32", "fp64", "fp16", "bf16")
        shapes = [f"B=2,T=9,L=5,H=3,D=6,rotary_dim=4,dtype={dtype},style={style}"
                  for dtype in dtypes for style in ("half", "interleaved")]  # T > L: they collide
        rows = self.rows("rope-update", *(word for shape in shapes for word in ("--shape", shape)))
        self.assertEqual([row["dtype"] for row in rows][::2], list(dtypes))

    def test_products(self):
        rows = []
        for op, shapes in {
                "mla-compress": ["T=5,layout=out-in,up=packed,dtype=bf16", "T=3,k_dim=6,v_dim=10"],
                "mla-append": ["T=3,model_dim=96,from=hidden", "T=70,rank=40,rope_dim=6,dtype=fp16"],
                "mla-expand": ["T=70,heads=3,rank=40,rope_dim=6,nope_dim=10,v_dim=7,dtype=fp32"],
        }.items():
            rows += self.rows(op, *(word for shape in shapes for word in ("--shape", shape)))
        for row in rows:
            self.assertEqual(list(row), KEYS)
            self.assertGreater(row["fraction"], 0)
            if "from=rows" not in row["shape"]:  # the ceiling is what its products take alone
                self.assertAlmostEqual(row["fraction"] * row["ceiling"] / row["tflop_per_s"], 1, 6)
        code, _, err = bench("mla-compress", "--shape", "path=fused")
        self.assertEqual(code, 2)
        self.assertIn("kFused", err)
        code, _, err = bench("mla-compress", "--shape", "up=no")
        self.assertEqual(code, 2)
        self.assertIn("apart, packed", err)

    def test_swap(self):
        directions = ("down", "up", "both")
        shapes = [f"block=4097,blocks=70,direction={direction}" for direction in directions]
        rows = self.rows("swap", *(word for shape in shapes for word in ("--shape", shape)))
        self.assertEqual([row["shape"] for row in rows], shapes)
        for row, ways in zip(rows, (1, 1, 2)):
            self.assertEqual(list(row), KEYS)
            # What crosses the link, once; beside the same bytes in one copy.
            self.assertAlmostEqual(row["gb_per_s"] * 1e3 * row["median_us"], ways * 70 * 4097, 3)
            self.assertAlmostEqual(row["fraction"], row["gb_per_s"] / row["ceiling"])
        row, = self.rows("swap", "--shape", "block=134217728")
        self.assertIn("blocks=2,direction=down", row["shape"])

    def test_cold_sets_rotate(self):
        row, = self.rows("append", "--cold", "--shape", "T=1024")
        self.assertFalse(row["hot"])

    def test_a_file(self):
        with tempfile.NamedTemporaryFile() as file:
            code, out, _ = bench("rope-update", "--hot", "--shape", "L=16", "--json", file.name)
            self.assertEqual((code, len(json.load(file))), (0, 1))
            self.assertIn("rope-update", out)

    def test_manager(self):
        rows = self.rows("manager", "--shape", "blocks=1024,sequences=20,children=600")
        self.assertEqual([row["op"] for row in rows],
                         ["manager-cold", "manager-warm", "manager-step", "manager-partial"])
        for row in rows:
            self.assertEqual(list(row), ["op", "shape", "backend", "per", "median_us", "p99_us"])
            self.assertLessEqual(0, row["median_us"])
            self.assertLessEqual(row["median_us"], row["p99_us"])
        for wrong in (("manager", "append"), ("manager", "--hot"), ("manager", "--shape", "T=1"),
                      ("manager", "--explain"), ("manager", "--threads", "2"), ("tier", "--explain")):
            self.assertEqual(bench(*wrong)[0], 2)

    def test_tier(self):
        rows = self.rows("tier", "--shape", "layers=2,kv_heads=1,dim=8,blocks=9,sequences=3,tokens=20")
        # On the CPU copies run at once, so nothing runs beside them.
        self.assertEqual([row["op"] for row in rows],
                         ["tier-suspend", "tier-resume", "tier-both", "tier-prepare", "tier-upload",
                          "tier-append"])
        for row in rows:
            self.assertEqual(list(row), ["op", "shape", "backend", "median_us", "p99_us", "gb_per_s",
                                         "ceiling", "fraction", "times_alone"])
            self.assertLessEqual(row["median_us"], row["p99_us"])
        moved = 9 * 16 * 2 * 2 * 8 * 2  # blocks, tokens, layers, K and V, elements, bytes
        self.assertAlmostEqual(rows[0]["gb_per_s"] * 1e3 * rows[0]["median_us"], moved, 3)
        self.assertAlmostEqual(rows[2]["gb_per_s"] * 1e3 * rows[2]["median_us"], 2 * moved, 3)
        for wrong in (("tier", "swap"), ("tier", "--cold"), ("tier", "--shape", "T=1")):
            self.assertEqual(bench(*wrong)[0], 2)

    def test_in_is_dtype_by_default(self):
        row, = self.rows("append", "--shape", "T=2,dtype=fp32")
        self.assertIn("in=fp32", row["shape"])
        self.assertEqual(row["dtype"], "fp32")

    def test_a_shape_without_room(self):
        for shape in ("B=65536,L=16777216,H=1024,D=512", "B=4096,L=65536,H=64,D=128"):
            code, out, err = bench("rope-update", "--shape", shape, "--json", "-")
            self.assertEqual((code, out), (2, ""), shape)
            self.assertRegex(err, r"B=\d+.*takes about \S+ bytes")

    @unittest.skipIf(SANITIZED, "no limit can be set under a sanitizer")
    def test_a_limit_that_leaves_little_room(self):
        done = subprocess.run(
            ["bash", "-c", 'ulimit -v 3000000; exec "$@"', "-", LARIAT, "bench", "rope-update",
             "--backend", "cpu", "--shape", "B=8,L=65536,H=8,D=128", "--json", "-"],
            capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"B=8.*bytes")
        self.assertNotIn("bad_alloc", done.stderr)

    def test_messages_name_the_key(self):
        for shape, said in (("in=fp16", "in=fp16"), ("dtype=fp64", "dtype and in"),
                            ("k_dim=7", "k_dim=7"), ("rotary_dim=256", "rotary_dim=256"),
                            ("launch=now", "off, wait, early"), ("W=2", "q_heads"),
                            ("", "is empty")):
            code, out, err = bench("append", "--shape", shape, "--json", "-")
            self.assertEqual((code, out), (2, ""), shape)
            self.assertIn("--shape", err)
            self.assertIn(said, err)

    def test_the_document_can_be_written(self):
        for path in ("/nonexistent/b.json", "/tmp", ""):
            code, out, err = bench("append", "--shape", "T=1", "--json", path)
            self.assertEqual((code, out), (2, ""), path)
            self.assertIn("--json", err)

    def test_bad_usage(self):
        for arguments in (["dance"], [], ["swap", "--shape", "direction=left"], ["append", "--shape", "T=0"],
                          ["append", "--shape", "T=1,T=2"], ["append", "--shape", "W=2"],
                          ["append", "--shape", "k_dim=7"], ["append", "--shape", "dtype=fp12"],
                          ["append", "--cold", "--shape", "T=1"], ["append", "--hot", "--cold"],
                          ["append", "rope-update", "--shape", "T=1"],
                          ["append", "--backend", "null"], ["append", "--backend", "abacus"]):
            code, out, err = bench(*arguments)
            self.assertEqual((code, out), (2, ""), arguments)
            self.assertNotEqual(err, "", arguments)
        self.assertEqual(bench("append", LARIAT_BACKEND="abacus")[0], 2)


if __name__ == "__main__":
    unittest.main()
