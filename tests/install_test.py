#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs a build, and builds and runs a project that finds it.

usage: install_test.py ROOT BUILD CMAKE COMPILER
"""
import pathlib
import subprocess
import sys
import tempfile


def run(*command):
    print(*command, flush=True)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    root, build, cmake, compiler = sys.argv[1:5]
    with tempfile.TemporaryDirectory() as folder:
        prefix, consumer = f"{folder}/prefix", pathlib.Path(folder) / "consumer"
        run(cmake, "--install", build, "--prefix", prefix)
        run(cmake, "-S", f"{root}/tests/install", "-B", str(consumer), "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={compiler}")
        run(cmake, "--build", str(consumer))
        output = run(str(consumer / "example")) + run(str(consumer / "planner"))
    print(output, end="")
    return 0 if "96 of 100" in output and "3 requests on " in output else 1


if __name__ == "__main__":
    sys.exit(main())
