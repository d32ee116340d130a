#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the names that the libraries bring into a program.

usage: symbols_test.py NM ROOT LIBRARY ...

An archive defines strong symbols of the namespace lariat and of the C API alone; a shared library
shows the C API alone, all of it. (Weak ones, of templates and inline functions, may be any.)
"""
import pathlib
import re
import subprocess
import sys

# _ZN6lariat..., with what stands before the name of a table, a guard or a thunk; a kernel's stub on
# the host carries the kernel's name.
OURS = re.compile(r"_Z(T[VTIS]|GV|T[hv]n?\d+_(n?\d+_)?|T[WH]|Z)*N[VKRO]*6lariat|"
                  r"_Z(L|N[VKRO]*6lariat.*|)\d*__device_stub__.*6lariat")
C_API = re.compile(r"lariat_[a-z0-9_]+")


def symbols(nm, path):
    """(name, type) of what the library defines for others."""
    dynamic = ["-D"] if ".so" in path.name else []
    text = subprocess.run([nm, *dynamic, "-g", "--defined-only", str(path)], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 3:
            yield fields[2], fields[1]


def main():
    nm, root, *libraries = sys.argv[1:]
    header = (pathlib.Path(root) / "include/lariat/lariat.h").read_text(encoding="utf-8")
    declared = set(re.findall(r"LARIAT_API [\w\s*]*?\b(lariat_\w+)\(", header))
    errors = [] if len(declared) > 40 else [f"{len(declared)} functions in lariat.h: too few"]
    for library in map(pathlib.Path, filter(None, libraries)):
        shared = ".so" in library.name
        found = list(symbols(nm, library))
        strong = {name for name, kind in found if shared or kind not in "VvWwu"}
        c_api = {name for name in strong if C_API.fullmatch(name)}
        rest = {name for name in strong - c_api if shared or not OURS.match(name)}
        if not strong:
            errors.append(f"{library}: no symbol at all")
        errors += [f"{library}: {name}" for name in sorted(rest)]
        if shared or library.name == "liblariat.a":
            errors += [f"{library}: {name} is missing" for name in sorted(declared - c_api)]
        errors += [f"{library}: {name} is not declared in lariat.h" for name in sorted(c_api - declared)]
        print(f"{library.name}: {len(strong)} strong symbols, {len(c_api)} of the C API, "
              f"{len(rest)} of others")
    print("\n".join(errors))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
