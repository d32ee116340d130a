#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests how tools/bench_tables.py makes tables, on figures of its own.

usage: bench_tables_test.py ROOT
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
TARGETS = {"box": {
    "machine": {"kind": "machine"},
    "ceilings": {"kind": "ceilings"},
    "ops": {"kind": "launch", "rows": [
        {"op": "append", "shape": {"T": 1}, "hot": True, "label": "append", "text": "T=1",
         "peer": "1.0", "target_us": 0.8, "target_plain_us": 1.5},
        {"op": "append", "shape": {"T": 8}, "hot": False, "text": "T=8", "target_fraction": 0.94},
        {"op": "mla", "shape": {"T": 1}, "hot": False, "text": "T=1", "products": True,
         "target_times_products": 1.1},
        {"op": "append", "shape": {"T": 99}, "hot": False, "text": "T=99", "target_us": 1}]},
    "manager": {"kind": "manager", "rows": [
        {"op": "manager-cold", "shape": {"blocks": 2}, "label": "cold", "text": "2", "target_ns": 60}]},
}}
PAGE = """# Page
<!-- bench box machine -->
<!-- /bench -->
between
<!-- bench box ops -->
stale
<!-- /bench -->
<!-- bench box manager -->
<!-- /bench -->
<!-- bench box ceilings -->
<!-- /bench -->
<!-- bench other ops -->
kept
<!-- /bench -->
end
"""


def row(op, shape, hot, us, fraction=0.5, tflops=0.0, pdl=False):
    return {"op": op, "shape": shape, "dtype": "bf16", "backend": "cuda", "hot": hot, "pdl": pdl,
            "median_us": us, "gb_per_s": 1234.56, "tflop_per_s": tflops, "ceiling": 4000.0,
            "fraction": fraction}


ROWS = [row("ceiling", "kind=copy,bytes=4096,size=0,launch=off", False, 2.0, 1.0),
        row("append", "T=1,q_heads=0,launch=off", True, 1.6),
        row("append", "T=1,q_heads=0,launch=early", True, 0.7, pdl=True),
        row("append", "T=8,q_heads=0,launch=off", False, 12.3456, 0.93),
        row("mla", "T=1,rank=512", False, 10.0, 1 / 1.21, 2.5),
        {"op": "manager-cold", "shape": "blocks=2", "backend": "null", "per": "block",
         "median_us": 0.0601, "p99_us": 0.1}]


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "docs/benchmarks").mkdir(parents=True)
        (self.root / "docs/benchmarks/targets.json").write_text(json.dumps(TARGETS))
        self.page = self.root / "docs/benchmarks.md"
        self.page.write_text(PAGE)

    def figures(self, date, rows):
        path = self.root / f"docs/benchmarks/{date}-box.json"
        path.write_text(json.dumps({"date": date, "device": "Box", "driver": "1.2", "toolkit": "13.0",
                                    "architectures": "90a", "compiler": "g++ 1", "commit": "abc",
                                    "rows": rows}))

    def run_it(self, command):
        done = subprocess.run([sys.executable, str(ROOT / "tools/bench_tables.py"), command, "--root",
                               str(self.root)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_tables_are_what_the_figures_give(self):
        self.figures("2026-01-02", ROWS)
        self.assertEqual(self.run_it("check")[0], 1)
        code, said = self.run_it("write")
        self.assertEqual(code, 0, said)
        self.assertIn("no figures yet: other ops", said)
        text = self.page.read_text()
        for line in (
                "2026-01-02, one run: Box, driver 1.2; toolkit 13.0 for 90a; g++ 1; commit abc; copy ceiling "
                "1234.6 GB/s. All rows: [2026-01-02-box.json](benchmarks/2026-01-02-box.json).",
                "| append | T=1 | hot | 1.600 | 0.700 | 1235 |  | 50.0 % | 1.0 | 0.8; 1.5 plain: missed by 6.7 % |",
                "|  | T=8 | cold | 12.35 |  | 1235 |  | 93.0 % |  | 94 %: missed by 1.0 points |",
                "|  | T=1 | cold | 10.00 |  | 1235 | 2.500 | 82.6 % of products |  | "
                "1.1 x its products: missed by 10.0 % |",
                "|  | T=99 |  |  |  | not measured |  |  |  | 1 |",
                "| cold | 2 | 60.1 | 100 | 60: missed by 0.2 % |",
                "| kind=copy,bytes=4096,size=0 |  | 2.000 | 1235 |  |",
                "between", "kept", "end"):
            self.assertIn(line + "\n", text)
        self.assertNotIn("stale", text)
        self.assertEqual(self.run_it("check")[0], 0)
        self.page.write_text(text.replace("0.700", "0.600"))
        code, said = self.run_it("check")
        self.assertEqual(code, 1)
        self.assertIn("bench_tables.py write", said)

    def test_the_newest_file_counts(self):
        self.figures("2026-01-02", ROWS)
        self.figures("2026-01-10", [{**r, "median_us": 3.25} for r in ROWS])
        self.assertEqual(self.run_it("write")[0], 0)
        text = self.page.read_text()
        self.assertIn("2026-01-10-box.json", text)
        self.assertIn("| 3.250 |", text)
        self.assertNotIn("12.35", text)

    def test_a_row_that_is_two(self):
        self.figures("2026-01-02", ROWS + ROWS[3:4])
        code, said = self.run_it("write")
        self.assertEqual(code, 1)
        self.assertIn("are 2 rows", said)


class Targets(unittest.TestCase):
    def test_each_table_of_the_page_is_known(self):
        sys.path.insert(0, str(ROOT / "tools"))
        import bench_tables  # pylint: disable=import-outside-toplevel
        targets = json.loads((ROOT / "docs/benchmarks/targets.json").read_text(encoding="utf-8"))
        named = {match.group(2, 3) for match in bench_tables.BLOCK.finditer(
            (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8"))}
        known = {(name, made) for name, tables in targets.items() for made in tables}
        self.assertEqual(named, known)


if __name__ == "__main__":
    unittest.main()
