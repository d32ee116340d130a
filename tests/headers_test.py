#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles each public header alone, twice, with all warnings as errors.

usage: headers_test.py ROOT COMPILER
  COMPILER: clang++ or nvcc, or a g++; SKIPPED where it is not here.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]


def command(compiler, include):
    if "nvcc" in pathlib.Path(compiler).name:
        return [compiler, "-x", "cu", "-std=c++20", "-Werror", "all-warnings", "-Xcompiler",
                ",".join(WARNINGS), "-arch=sm_90", "-I", include, "-c"]
    return [compiler, "-x", "c++", "-std=c++20", *WARNINGS, "-I", include, "-fsyntax-only"]


def main():
    root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    if not shutil.which(compiler):
        print(f"SKIPPED: {pathlib.Path(compiler).name.lower()} is not here")
        return 0
    headers = sorted((root / "include").rglob("*.h"))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for header in headers:
            name = header.relative_to(root / "include")
            source = pathlib.Path(folder, "alone.cc")
            source.write_text(f'#include "{name}"\n#include "{name}"\n', encoding="utf-8")
            done = subprocess.run([*command(compiler, str(root / "include")), str(source), "-o",
                                   str(pathlib.Path(folder, "out"))],
                                  check=False, capture_output=True, text=True)
            if done.returncode:
                failed += 1
                print(f"{name}:\n{done.stderr}")
    print(f"{len(headers)} headers, {failed} failed")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
