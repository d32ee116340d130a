#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks docs/troubleshooting.md against the messages of the sources.

usage: check_messages.py ROOT [--list]

A message there is the code mark at the beginning of a table's row, with ... for what varies.
  Each of its fixed parts must be in a string of the sources.
  Each call under src/ that makes one of the CODES must have its longest fixed text in one of them;
  so must the messages of programs that are made with these WORDS.
--list prints those calls.
"""
import pathlib
import re
import sys

CODES = "Unsupported|ResourceExhausted|NeverFits|NotReady|CorruptData|DeviceError"
CALL = re.compile(rf"\b({CODES})\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
SOURCES = {".cc", ".h", ".cu", ".cuh", ".sh", ".cmake", ".in"}
# Calls without a text of their own: what they are called with, and a text that stands for it.
PASSED_ON = {
    "std::string message": None,  # the makers themselves
    "numbers": " blocks needed, ",
    "std::move(message)": "header: ",
    "text.str()": "struct_size ",
    'name + ": " + header.status().message()': "header: ",
    'std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error)': ": cuda",
    'std::string(call) + ": " + cublasLtGetStatusName(status)': ": CUBLAS_",
}


def arguments(text, begin):
    """What stands in the parentheses that are open at `begin`."""
    depth, end, quoted = 1, begin, False
    while depth:
        c = text[end]
        if quoted and c == "\\":
            end += 1
        elif c == '"':
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(c, 0)
        end += 1
    return text[begin:end - 1]


def joined(text):
    """Neighbouring strings as the compiler joins them."""
    return re.sub(r'"\s*\n?\s*"', "", text)


def calls(root):
    """(path, line, code, fixed text) of each call that makes a message of CODES."""
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in SOURCES:
            continue
        text = path.read_text(encoding="utf-8")
        for match in CALL.finditer(text):
            inside = joined(re.sub(r"\s+", " ", arguments(text, match.end())).strip())
            inside = re.sub(r'" "', "", inside)
            line = text.count("\n", 0, match.start()) + 1
            if inside in PASSED_ON:
                fixed = PASSED_ON[inside]
            else:
                fixed = max(STRING.findall(inside), key=len, default="")
            if fixed is not None:
                yield path.relative_to(root), line, match.group(1), fixed


def messages(text):
    """(line number, message) of the tables."""
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\| `([^`]+)` \|", line)
        if match:
            yield number, match.group(1).replace("\\|", "|")


def check(root):
    document = root / "docs/troubleshooting.md"
    listed = list(messages(document.read_text(encoding="utf-8")))
    strings = "\n".join(
        joined(p.read_text(encoding="utf-8")) for folder in ("src", "tools", "cmake", "tests/fuzz")
        for p in sorted((root / folder).rglob("*")) if p.suffix in SOURCES or p.name == "CMakeLists.txt")
    strings = strings.replace('\\"', '"')
    for number, message in listed:
        for part in message.split("..."):
            if part.strip() and part.strip() not in strings:
                yield f"{document}:{number}: no source says '{part.strip()}'"
    everything = "\n".join(message for _, message in listed)
    for path, line, code, fixed in calls(root):
        if not fixed:
            yield f"{path}:{line}: this {code} has no text of its own: name it in tools/check_messages.py"
        elif fixed.strip() not in everything:
            yield f"{path}:{line}: docs/troubleshooting.md has no row for '{fixed.strip()}'"


def main():
    root = pathlib.Path(sys.argv[1])
    if "--list" in sys.argv:
        for path, line, code, fixed in calls(root):
            print(f"{path}:{line}: {code} {fixed!r}")
        return 0
    errors = list(check(root))
    print(*errors, sep="\n", end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
