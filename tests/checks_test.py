#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the checks of tools/ fail where they should.

usage: checks_test.py ROOT
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()


def run(script, *arguments):
    command = [sys.executable, str(ROOT / "tools" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


class CheckIncludes(Folder):
    def verdict(self, path, include):
        (self.root / "src").mkdir(exist_ok=True)
        written = self.write(path, f"#pragma once\n#include {include}\n")
        code, output = run("check_includes.py", self.root)
        written.unlink()
        if code:
            self.assertIn(f"{written}:2: ", output)
        return code

    def test_this_tree(self):
        code, output = run("check_includes.py", ROOT)
        self.assertEqual(code, 0, output)

    def test_what_is_allowed(self):
        for path, include in (("src/cache/a.cc", '"storage/b.h"'), ("src/cache/a.cc", '"cache/b.h"'),
                              ("src/blocks/a.h", '"base/b.h"'), ("src/blocks/a.h", "<vector>"),
                              ("src/backend/cuda/a.cu", "<cuda_runtime.h>"),
                              ("tools/a.cc", "<CLI/CLI.hpp>"), ("tools/a.cc", '"lariat/session.h"'),
                              ("include/lariat/a.h", '"lariat/b.h"'),
                              ("src/c_api/a.cc", '"lariat/kv_cache.h"'),
                              ("include/lariat/a.h", "<stdint.h>"),
                              ("tests/reference/a.h", '"lariat/types.h"')):
            self.assertEqual(self.verdict(path, include), 0, (path, include))

    def test_what_is_not(self):
        for path, include in (("src/storage/a.cc", '"cache/b.h"'),  # upward
                              ("src/blocks/a.cc", '"backend/b.h"'),  # sideways
                              ("src/backend/cpu/a.cc", '"blocks/b.h"'),
                              ("src/base/a.cc", '"elsewhere/b.h"'),
                              ("src/session/a.cc", '"blocks/b.h"'),  # past the public API
                              ("tools/a.cc", '"cache/b.h"'),
                              ("src/c_api/a.cc", '"cache/b.h"'),
                              ("src/cache/a.cc", '"c_api/b.h"'),
                              ("src/cache/a.cc", "<nlohmann/json.hpp>"),
                              ("src/cache/a.cc", "<cuda_runtime.h>"),
                              ("src/session/a.cc", "<spdlog/spdlog.h>"),
                              ("include/lariat/a.h", "<cuda_runtime.h>"),
                              ("include/lariat/a.h", '"backend/b.h"'),
                              ("tests/reference/a.h", '"blocks/b.h"')):
            self.assertEqual(self.verdict(path, include), 1, (path, include))

    def test_a_folder_without_a_floor(self):
        self.write("src/attic/a.cc", "")
        code, output = run("check_includes.py", self.root)
        self.assertEqual(code, 1)
        self.assertIn("without a floor", output)


class CountTests(Folder):
    def count(self, *cases, allowed="p 1 no device.*"):
        body = "".join(
            f'<testcase name="t{i}" status="{status}"><system-out>{output}</system-out></testcase>'
            for i, (status, output) in enumerate(cases))
        report = self.write("r.xml", f"<testsuite>{body}</testsuite>")
        return run("count_tests.py", "--allowed", self.write("allowed", allowed + "\n"),
                   f"p={report}")

    def test_counts(self):
        code, output = self.count(("run", ""), ("notrun", "SKIPPED: no device here\n"))
        self.assertEqual(code, 0, output)
        self.assertEqual(output.splitlines()[-1], "1 passed, 0 failed, 1 skipped")

    def test_too_many_skips(self):
        skip = ("notrun", "SKIPPED: no device\n")
        code, output = self.count(("run", ""), skip, skip)
        self.assertEqual(code, 1)
        self.assertIn("2 tests skipped, 1 are allowed", output)

    def test_a_reason_that_no_line_allows(self):
        self.assertEqual(self.count(("run", ""), ("notrun", "SKIPPED: tired\n"))[0], 1)
        self.assertEqual(self.count(("run", ""), ("notrun", "SKIPPED: no device\n"),
                                    allowed="other 9 .*")[0], 1)

    def test_a_failure_that_looks_like_a_skip(self):
        text = "SKIPPED: no device\na.cc:1: FAILED:\n"
        self.assertEqual(self.count(("run", ""), ("notrun", text))[0], 1)

    def test_failures_and_nothing(self):
        self.assertEqual(self.count(("run", ""), ("fail", ""))[0], 1)
        self.assertEqual(self.count(("run", ""), ("notrun", ""))[0], 1)
        self.assertEqual(self.count(("notrun", "SKIPPED: no device\n"))[0], 1)
        self.assertEqual(run("count_tests.py", "--allowed", self.write("a", ""), "p=/absent")[0], 1)


class CheckDocs(Folder):
    def setUp(self):
        super().setUp()
        self.write("include/lariat/a.h", "class Cache {\n  int Open(int max_tokens);\n};\n"
                                         "enum class Code { kOk };\n")
        self.write("tools/x.sh", "case $1 in --fast) ;; esac\n")
        self.write("src/CMakeLists.txt", "add_library(lariat::lariat ALIAS a)\noption(LARIAT_FAST)\n")
        program = self.write("bin/lariat", '#!/bin/sh\ncase $1 in go) echo "  --json FILE" ;; *) printf '
                                           '"  --version\\nSubcommands:\\n  go     Goes\\n" ;; esac\n')
        program.chmod(0o755)
        self.program = program

    def check(self, text):
        self.write("README.md", text + "\n")
        return run("check_docs.py", self.root, "--program", self.program)

    def test_this_tree(self):
        code, output = run("check_docs.py", ROOT)
        self.assertEqual(code, 0, output)

    def test_what_exists(self):
        for text in ("`lariat::Cache`, `Cache::Open`, `lariat::lariat`, `kOk`, `max_tokens`", "`LARIAT_FAST`",
                     "`include/lariat/a.h`", "`a.h`", "`lariat go --json -`", "`--fast`", "`--version`",
                     "```sh\nbin/lariat go \\\n  --json -\n```", "`src/*.txt`", "`x_i = p_0`",
                     "`cmake --preset release`", "plain --words and no_names"):
            self.assertEqual(self.check(text), (0, ""), text)

    def test_what_does_not(self):
        for text in ("`lariat::Cash`", "`lariat::Cache::Close`", "`Cash::Open`", "`lariat::c`", "`kGood`",
                     "`max_token`", "`LARIAT_SLOW`", "`include/lariat/b.h`", "`b.h`", "`lariat go --fast`",
                     "`--slow`", "```sh\nbin/lariat go \\\n  --fast\n```", "`src/*.md`",
                     "```cpp\nmax_token = 1;\n```"):
            code, output = self.check(text)
            self.assertEqual(code, 1, text)
            self.assertRegex(output, r"README\.md:\d: ")


class DoxygenFilter(Folder):
    """What the filter makes of a header; tools/doxygen.sh runs Doxygen over all of them."""

    def lines(self, text):
        code, output = run("doxygen_filter.py", self.write("a.h", text))
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("\n"), text.count("\n"))
        return output.splitlines()

    def test_comments_before_and_behind(self):
        self.assertEqual(self.lines("// A.\nstruct A {\n  int b = 0;  // B.\n};\n"),
                         ["/// A.", "struct A {", "  int b = 0;  ///< B.", "};"])

    def test_a_run_and_an_empty_line(self):
        self.assertEqual(self.lines("// A.\nvoid A(int);\nvoid B(int);\n\nvoid C(int);\n"),
                         ["/// A.", "void A(int);", "/** A. */ void B(int);", "", "void C(int);"])

    def test_fields_are_told_by_their_struct_and_functions_are_not(self):
        self.assertEqual(self.lines("// A.\nclass A {\n\n  int b = 0;\n  void C(int);\n};\n"),
                         ["/// A.", "class A {", "", "  /** A. */ int b = 0;", "  void C(int);", "};"])
        self.assertEqual(self.lines("struct A {\n  int b;\n};\n"), ["struct A {", "  int b;", "};"])

    @unittest.skipUnless(shutil.which("doxygen"), "no doxygen")
    def test_doxygen_fails_on_what_has_none(self):
        for name in ("doxygen.sh", "doxygen_filter.py"):
            shutil.copy(ROOT / "tools" / name, self.write(f"tools/{name}", ""))
        self.write("docs/Doxyfile", (ROOT / "docs/Doxyfile").read_text(encoding="utf-8"))
        header = "// N.\nnamespace lariat {\n\n// A.\nstruct A {\n  int b = 0;\n};\n\n%s\n}\n"
        for planted, code in (("", 0), ("int F(int a);\n", 1),
                              ("struct B {\n  int c = 0;  // C.\n};\n", 1), ("enum class E { kF };\n", 1),
                              ("// \\ref Nothing.\nint F(int a);\n", 1)):
            self.write("include/lariat/a.h", header % planted)
            done = subprocess.run([self.root / "tools/doxygen.sh", self.root / "out"], check=False,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, code, planted + done.stdout + done.stderr)


class RunScript(Folder):
    def script(self, path, text):
        self.write(path, "#!/bin/bash\n" + text).chmod(0o755)

    def test_paths_are_those_of_the_caller(self):
        self.script("tools/run.sh", (ROOT / "tools/run.sh").read_text(encoding="utf-8"))
        self.script("tools/setup.sh", "exit 0\n")
        self.script("bin/cmake", "exit 0\n")
        self.script("build/release/tools/lariat", 'pwd -P; printf "%s\\n" "$@"\n')
        caller = (self.root / "elsewhere").resolve()
        caller.mkdir()
        done = subprocess.run(["../tools/run.sh", "--json", "r.json"], cwd=caller, text=True,
                              env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"},
                              capture_output=True, check=True)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[:2], [str(caller), "simulate"])
        self.assertEqual(lines[-2:], ["--json", "r.json"])
        demo = pathlib.Path(lines[lines.index("--trace") + 1])
        self.assertEqual(demo, self.root.resolve() / "examples/traces/demo.jsonl")


if __name__ == "__main__":
    unittest.main()
