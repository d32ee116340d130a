#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the documents say against the tree.

usage: docs_test.py ROOT
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = {".c", ".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake"}
FOLDERS = ("include", "src", "tools", "tests", "examples", "cmake")


def fences(text):
    """The contents of a document's code blocks, by language."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Readme(unittest.TestCase):
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    def test_shows_the_compiled_example(self):
        source = (ROOT / "tests/readme_example.cc").read_text(encoding="utf-8")
        example = re.search(r"// readme-begin\n(.*)// readme-end", source, re.DOTALL).group(1)
        shown = [code for language, code in fences(self.text) if language == "cpp"]
        self.assertIn(example, shown)
        self.assertLessEqual(len(example.splitlines()), 50)

    def test_names_the_two_commands(self):
        for command in ("tools/run.sh", "tools/test.sh"):
            self.assertIn(command, self.text)
            self.assertTrue((ROOT / command).stat().st_mode & 0o100, command)


class Documents(unittest.TestCase):
    def test_links_lead_to_files(self):
        for document in DOCUMENTS:
            text = document.read_text(encoding="utf-8")
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
                if "://" not in target:
                    with self.subTest(document=document.name, target=target):
                        self.assertTrue((document.parent / target).exists())

    def test_paths_in_code_marks_exist(self):
        for document in DOCUMENTS:
            text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"),
                          flags=re.MULTILINE | re.DOTALL)
            for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", text):
                with self.subTest(document=document.name, path=path):
                    self.assertTrue((ROOT / path).exists())

    def test_names_of_the_api_exist(self):
        headers = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "include").rglob("*.h"))
        for document in DOCUMENTS:
            for name in re.findall(r"`(?:KVCache|Session|Device|Step|StepView|LayerView)::(\w+)",
                                   document.read_text(encoding="utf-8")):
                with self.subTest(document=document.name, name=name):
                    self.assertRegex(headers, rf"\b{name}\b")


class Licence(unittest.TestCase):
    def test_every_source_file_names_it(self):
        files = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*")
                 if p.suffix in SOURCES or p.name == "CMakeLists.txt"]
        self.assertGreater(len(files), 20)
        for path in [*files, ROOT / "CMakeLists.txt", ROOT / ".ci/run"]:
            with self.subTest(path=str(path.relative_to(ROOT))):
                head = path.read_text(encoding="utf-8").splitlines()[:2]
                self.assertTrue(any("SPDX-License-Identifier: Apache-2.0" in line for line in head))

    def test_the_licence_file_does(self):
        text = (ROOT / "LICENSE").read_text(encoding="utf-8")
        self.assertIn("SPDX-License-Identifier: Apache-2.0", text)


if __name__ == "__main__":
    unittest.main()
