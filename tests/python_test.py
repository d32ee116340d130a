#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a Python example with the first interpreter that has numpy.

usage: python_test.py SCRIPT LIBLARIAT_C
"""
import os
import subprocess
import sys


def main():
    script, library = sys.argv[1:3]
    for python in (sys.executable, "python3", "/usr/bin/python3"):
        try:
            subprocess.run([python, "-c", "import numpy; numpy.from_dlpack"], check=True,
                           capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return subprocess.run([python, "-B", script], env={**os.environ, "LARIAT_C": library},
                              check=False).returncode
    print("SKIPPED: numpy (1.23 or later) is not here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
