#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that what the documents name exists.

usage: check_docs.py ROOT [--program PROGRAM]...

Read are the code marks and code blocks of README.md, CONTRIBUTING.md, CHANGELOG.md and docs/. There,
  names      lariat::A::B and A::B are declared so; kName, LARIAT_NAME, lariat_name and other
             names_with_underscores occur in the tree;
  paths      include/.., src/.. and so on, and names of files, are there;
  flags      --flag is one of the scripts, of a program (from its --help), or follows the name of a
             tool from elsewhere; behind `lariat SUB` it is one of SUB.
Without --program the programs' flags are not checked.
"""
import argparse
import pathlib
import re
import subprocess
import sys

FOLDERS = "include|src|tools|tests|examples|cmake|docs|models|devices"
SOURCES = {".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".in", ".txt", ".json", ".map"}
# Tools from elsewhere, whose own manuals tell their flags.
ELSEWHERE = re.compile(r"\b(cmake|ctest|pkg-config|curl|git|ninja|nsys|ncu|apt-get|lariat_libfuzzer)\b|libfuzzer")
# Names of others.
FOREIGN = frozenset("std prometheus hash_id modeling_rope_utils modeling_rope_utils.py server.c".split())
# Of formulas: x_i, p_0.
SUBSCRIPT = re.compile(r"\w+_([a-z]{1,2}|\d)")
FILE = re.compile(r"(?<![\w./*-])([\w-]+\.(?:h|cc|cu|cuh|sh|md|cmake|py|c))(?![\w./])")


class Tree:
    """What there is to be named."""

    def __init__(self, root):
        self.root = root
        self.files = [p for p in root.rglob("*") if p.is_file() and self.ours(p)]
        self.names_of_files = {p.name for p in self.files}
        self.text = "\n".join(p.read_text(encoding="utf-8", errors="replace") for p in self.files
                              if p.suffix in SOURCES or p.name == "CMakePresets.json")
        self.words = set(re.findall(r"\w+", self.text))
        self.scripts = set(re.findall(r"(--[a-z][\w-]*)", "\n".join(
            p.read_text(encoding="utf-8") for p in self.files
            if p.suffix in {".sh", ".py"} and p.parent.name in {"tools", "tests", "data"}
            or p.name in {"fuzz_main.cc", "simulate_options.cc"})))  # the latter: what is not built
        self.targets = set(re.findall(r"lariat::(\w+) ALIAS|EXPORT_NAME (\w+)", self.text))
        self.targets = {name for pair in self.targets for name in pair}
        self.types = self.bodies()

    def ours(self, path):
        parts = path.relative_to(self.root).parts
        return parts[0] != ".git" and not parts[0].startswith("build")

    def bodies(self):
        """The text of each type, by its name; one name may be of several."""
        found = {}
        for match in re.finditer(r"\b(?:struct|class|enum class)(?: \[\[nodiscard\]\])? (\w+)[^;{()]*\{",
                                 self.text):
            depth, end = 1, match.end()
            while depth and end < len(self.text):
                depth += {"{": 1, "}": -1}.get(self.text[end], 0)
                end += 1
            found[match.group(1)] = found.get(match.group(1), "") + self.text[match.end():end]
        return found


class Programs:
    """The flags of the programs, by program and subcommand; None: not known."""

    def __init__(self, paths):
        self.flags = {}
        for path in paths:
            name = pathlib.Path(path).name
            text = self.help(path)
            self.flags[name] = self.of(text)
            for sub in re.findall(r"^  (\w+) {3,}", text.partition("Subcommands:")[2], re.MULTILINE):
                self.flags[f"{name} {sub}"] = self.of(self.help(path, sub))

    @staticmethod
    def help(path, *arguments):  # every program has one
        return subprocess.run([path, *arguments, "--help"], capture_output=True, text=True,
                              check=True).stdout

    @staticmethod
    def of(text):
        return set(re.findall(r"(--[a-z][\w-]*)", text)) | {"--help"}

    def all(self):
        return set().union(*self.flags.values())


def code_of(text):
    """(line number, line) of each code mark, and of each line of a code block."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            yield number, line
        else:
            for mark in re.findall(r"`([^`]+)`", line):
                yield number, mark


class Check:
    def __init__(self, tree, programs):
        self.tree, self.programs = tree, programs
        self.command = None  # that goes on with a backslash

    def qualified(self, names):
        """Why A::B::C is not declared, or None."""
        if names[0] == "lariat":
            names = names[1:]
            if len(names) == 1 and names[0] in self.tree.targets:
                return None
        if names[0] in FOREIGN or len(names) == 1 and names[0] in self.tree.words:
            return None
        for outer, inner in zip(names, names[1:]):
            if outer not in self.tree.types:
                return f"no type {outer}"
            if not re.search(rf"\b{inner}\b", self.tree.types[outer]):
                return f"{outer} has no {inner}"
        return None if names[0] in self.tree.types or len(names) > 1 else f"no {names[0]}"

    def names(self, code):
        code = re.sub(r"https?://\S+|\b\w+(?:/[\w.-]+)+|\w+\.jsonl", " ", code)
        for match in re.finditer(r"\b[A-Za-z_]\w*(?:::\w+)+", code):
            why = self.qualified(match.group().split("::"))
            if why:
                yield f"{match.group()}: {why}"
        for name in re.findall(r"(?<![\w.:-])(k[A-Z]\w+|LARIAT_\w+|[a-z]\w*_\w+)\b(?![*.]?\*)", code):
            if not (name in self.tree.words or name in FOREIGN or SUBSCRIPT.fullmatch(name)
                    or self.metric(name)):
                yield f"{name} occurs nowhere in the tree"

    def metric(self, name):
        """Whether it is a Prometheus name, which is put together in metrics.cc."""
        stem = re.sub(r"^lariat_(session_|server_)?|_total$", "", name)
        return name.startswith("lariat_") and stem in self.tree.words

    def paths(self, code):
        for path in re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./*-]*\w[/*]?)", code):
            if not (any(self.tree.root.glob(path)) if "*" in path else (self.tree.root / path).exists()):
                yield f"{path} is not there"
        for name in FILE.findall(code):
            if name not in self.tree.names_of_files and name not in FOREIGN:
                yield f"no file is called {name}"

    def flags(self, code):
        whole = f"{self.command} {code}" if self.command else code
        self.command = whole[:-1] if code.endswith("\\") else None
        if not self.programs.flags or ELSEWHERE.search(whole):
            return
        known, whose = self.programs.all() | self.tree.scripts, "any program or script"
        sub = re.search(r"(?:^|/|\s)(lariat \w+|tiny_server)(?=\s|$)", whole)
        if sub and sub.group(1) in self.programs.flags:
            known, whose = self.programs.flags[sub.group(1)], sub.group(1)
        elif "tools/run.sh" in whole:
            known, whose = self.programs.flags.get("lariat simulate", known), "lariat simulate"
        for flag in re.findall(r"(?<![\w-])(--[a-z][\w-]*)", code):
            if flag not in known:
                yield f"{flag} is no flag of {whose}"

    def document(self, path):
        for number, code in code_of(path.read_text(encoding="utf-8")):
            for find in (self.names, self.paths, self.flags):
                for error in find(code):
                    yield f"{path}:{number}: {error}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--program", action="append", default=[])
    arguments = parser.parse_args()
    check = Check(Tree(arguments.root), Programs(arguments.program))
    documents = [arguments.root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    documents += sorted((arguments.root / "docs").rglob("*.md"))
    errors = [error for path in documents if path.exists() for error in check.document(path)]
    print(*errors, sep="\n", end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
