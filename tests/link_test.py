#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the link line that README.md gives, as it stands there, and the example that it makes.

usage: link_test.py ROOT BUILD COMPILER CUDA_LIBRARIES
  BUILD takes the place of build/release, COMPILER that of g++, and CUDA_LIBRARIES (empty: the
  archives were built without CUDA) that of /usr/local/cuda/lib64.
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile


def main():
    root, build, compiler, cuda = sys.argv[1:5]
    text = (pathlib.Path(root) / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in re.findall(r"^g\+\+ .*$", text, re.MULTILINE)
             if ("cudart" in line) == bool(cuda)]
    if len(lines) != 1:
        sys.exit(f"want one link line {'with' if cuda else 'without'} CUDA, found {len(lines)}")
    with tempfile.TemporaryDirectory() as folder:
        example = str(pathlib.Path(folder) / "example")
        command = shlex.split(lines[0], comments=True)
        command[0] = compiler
        command[command.index("-o") + 1] = example
        command = [word.replace("build/release", build) for word in command]
        command = [word.replace("/usr/local/cuda/lib64", cuda) for word in command]
        print(shlex.join(command), flush=True)
        subprocess.run(command, cwd=root, check=True)
        output = subprocess.run([example], check=True, capture_output=True, text=True).stdout
    print(output, end="")
    # A hit is whole blocks of 16, and never the prompt's last token.
    want = "0 of 100 prompt tokens were cached\n96 of 100 prompt tokens were cached\n"
    return 0 if output == want else 1


if __name__ == "__main__":
    sys.exit(main())
