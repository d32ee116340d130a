#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no include goes up the floors of the house (docs/architecture.md).

usage: check_includes.py [ROOT]

Fails on an include of a neighbour on the same floor or of a floor above, on a folder under src/ that
has no floor, on a public header that includes more than the standard library and lariat/, and on a
library outside the floors that may use it.
"""
import pathlib
import re
import sys

# A folder may include itself and folders of lower floors. `only` narrows that down.
FLOORS = {"base": 0, "model": 1, "backend": 1, "blocks": 1, "storage": 2, "cache": 3, "session": 4,
          "c_api": 4}
PUBLIC_ONLY = {"c_api", "session", "tools"}  # see lariat/ and their own files alone, as any server would
# Who may include what comes from elsewhere, by the first part of the path.
LIBRARIES = {
    "nlohmann": {"model", "session", "tools"},
    "CLI": {"tools"},
    "spdlog": {"tools"},
    "fmt": {"tools"},
    "benchmark": {"tools"},
    "httplib.h": {"tools"},
    "prometheus": {"tools"},
    "cblas.h": {"backend", "tools"},
    "xxhash.h": {"blocks"},
    "cuda": {"backend", "tools"},  # cuda*, cublas*, cooperative_groups, cub, nvtx3
}
CUDA = re.compile(r"^(cuda|cublas|cooperative_groups|cub/|nvtx3/|driver_types|vector_types|mma|curand)")
# POSIX, the C++ ABI and intrinsics.
SYSTEM = re.compile(r"^(unistd\.h|fcntl\.h|poll\.h|cxxabi\.h|immintrin\.h|(sys|arpa|netinet)/\w+\.h)$")
STANDARD = frozenset(
    """algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv
    chrono cinttypes climits clocale cmath compare complex concepts condition_variable coroutine
    csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque
    exception execution filesystem format forward_list fstream functional future initializer_list
    iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource
    mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf
    string string_view syncstream system_error thread tuple type_traits typeindex typeinfo
    unordered_map unordered_set utility valarray variant vector version""".split())
C_STANDARD = frozenset(("stddef.h", "stdint.h"))  # of the C API's headers
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cc", ".cu", ".cuh"}


def includes(path):
    """(line number, angle or quote, what) of each include."""
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in SOURCES) if folder.is_dir() else []


def check_outside(folder, what):
    """Why `folder` may not include <what>, or None."""
    if what in STANDARD or SYSTEM.match(what):
        return None
    library = "cuda" if CUDA.match(what) else what.split("/")[0]
    allowed = LIBRARIES.get(library)
    if allowed is None:
        return f"<{what}> is of no library that the project knows (tools/check_includes.py)"
    if folder not in allowed:
        return f"<{what}> belongs to {', '.join(sorted(allowed))}"
    return None


def check_inside(folder, what):
    """Why `folder` may not include "what", or None."""
    top = what.split("/")[0]
    if top == "lariat" or top == folder or folder == "tools" and "/" not in what:
        return None
    if folder in PUBLIC_ONLY:
        return f'{folder} includes lariat/ and its own files only, not "{what}"'
    if top not in FLOORS:
        return f'"{what}" is in no floor; write the path from src/ or include/'
    if FLOORS[top] >= FLOORS[folder]:
        return f'"{what}" (floor {FLOORS[top]}) is not below {folder} (floor {FLOORS[folder]})'
    return None


def check_file(path, folder):
    for number, mark, what in includes(path):
        why = check_outside(folder, what) if mark == "<" else check_inside(folder, what)
        if why:
            yield f"{path}:{number}: {why}"


def check_public(path):
    for number, mark, what in includes(path):
        if mark == "<" and what not in STANDARD | C_STANDARD:
            yield f"{path}:{number}: a public header includes the standard library only, not <{what}>"
        if mark == '"' and not what.startswith("lariat/"):
            yield f'{path}:{number}: a public header includes "lariat/..." only, not "{what}"'


def check_reference(path):
    """The tests' own arithmetic shares no code with src/."""
    for number, mark, what in includes(path):
        top = what.split("/")[0]
        if mark == '"' and "/" in what and top not in {"lariat", "reference", "support"}:
            yield f'{path}:{number}: tests/reference shares nothing with src/, not "{what}"'


def check(root):
    errors = []
    for folder in sorted(p for p in (root / "src").iterdir() if p.is_dir()):
        if folder.name not in FLOORS:
            errors.append(f"{folder}: a folder under src/ without a floor")
            continue
        for path in sources(folder):
            errors += check_file(path, folder.name)
    for path in sources(root / "tools"):
        errors += check_file(path, "tools")
    for path in sources(root / "include"):
        errors += check_public(path)
    for path in sources(root / "tests" / "reference"):
        errors += check_reference(path)
    return errors


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1])
    errors = check(root)
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
