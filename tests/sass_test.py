#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the machine code of AppendRope's and RopeUpdate's kernels and of MLA's fastest.

usage: sass_test.py CUOBJDUMP ARCHIVE

What a predecessor in a chain of dependent launches may have written must be loaded behind the wait
(ACQBULK). The compiler moves loads through the read-only path (CONSTANT) across it, so the kernels
have none; and in front of the wait there are only the loads that the form of the kernel allows.
"""
import re
import shutil
import subprocess
import sys

WAIT = "ACQBULK"
GLOBAL = re.compile(r"\b(LDG|LD|STG|ST|ATOM|ATOMG|RED|LDGSTS|UBLKCP)\b")
KERNELS = re.compile(r"AppendRopeKernel|RopeUpdate(?:Few|Many)Kernel|MlaAppend512Kernel|11FixedKernel")
# The template arguments in a mangled name.
APPEND = re.compile(r"AppendRopeKernelILi(\d+)ELi(\d+)ELb([01])ELb([01])E")
FEW = re.compile(r"RopeUpdateFewKernelILi(\d+)ELb([01])ELb([01])E")
MLA = re.compile(r"MlaAppend512KernelIN\w+?ELb([01])E")
COMPRESS = re.compile(r"11FixedKernelILb([01])E")


class Kernel:
    def __init__(self, name):
        self.name = name
        self.code = []

    def count(self, pattern):
        return sum(bool(re.search(pattern, line)) for line in self.code)

    def stretches_before_waits(self):
        """What lies between each wait and the last place before it that none falls through."""
        found, begin = [], 0
        for i, line in enumerate(self.code):
            if line.startswith(WAIT):  # without a predicate
                found.append(self.code[begin:i])
                begin = i + 1
            elif re.match(r"(EXIT|RET|BRA)\b", line):
                begin = i + 1
        return found


def read(cuobjdump, archive):
    done = subprocess.run([cuobjdump, "-sass", archive], capture_output=True, text=True, check=True)
    kernels, kernel = [], None
    for line in done.stdout.splitlines():
        function = re.search(r"Function : (\S+)", line)
        if function:
            kernel = Kernel(function.group(1))
            if KERNELS.search(kernel.name):
                kernels.append(kernel)
            continue
        instruction = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)
        if instruction and kernel:
            kernel.code.append(instruction.group(1))
    return kernels


def faults(kernel):
    """What is wrong with a kernel."""
    append, few, mla, compress = (
        form.search(kernel.name) for form in (APPEND, FEW, MLA, COMPRESS))
    if kernel.count(r"\b(LDL|STL)\b"):
        yield "uses local memory"
    # A root and a division are made of them, and products.
    if kernel.count(r"\b[FD]FMA\b") and not mla and not compress:
        yield "has a fused multiply-add"
    if kernel.count(r"\bLDG\S*\.CONSTANT"):
        yield "loads through the read-only path"
    wide = append and int(append.group(1)) == 8 or few and int(few.group(1)) > 1 or mla
    if wide and not (kernel.count(r"LDG\.E\.128") and kernel.count(r"STG\.E\.128")):
        yield "has no accesses of 128 bits"
    stretches = kernel.stretches_before_waits()
    if not stretches:
        yield "has no wait"
    form = append or few or mla or compress
    early = form and form.groups()[-1] == "1"
    for stretch in stretches:
        accesses = [line for line in stretch if GLOBAL.search(line)]
        allowed = 0
        if early and append:  # slot, position and choice, and cos and sin of as many pairs
            tables = [line for line in accesses if "LDG.E.128" in line]
            if len(tables) > 2 * int(append.group(1)) // 4:
                yield f"{len(tables)} loads of 128 bits come before a wait"
            allowed = 3 + len(tables)
        elif early and compress:  # w_down's and w_up's bulk copies
            allowed = sum("UBLKCP" in line for line in accesses[:2])
        elif early and mla:  # slot and position, cos and sin, two pieces of the weight
            allowed = 6
        elif early:  # two positions
            allowed = 2
        if len(accesses) > allowed:
            yield f"{len(accesses)} accesses come before a wait, {allowed} may: {accesses}"
        if any(re.search(r"\b(STG|ST|ATOM|ATOMG|RED)\b", line) for line in accesses):
            yield f"a store comes before a wait: {accesses}"


def main():
    cuobjdump, archive = sys.argv[1:3]
    if not shutil.which(cuobjdump):
        print("SKIPPED: cuobjdump is not here")
        return 0
    kernels = read(cuobjdump, archive)
    names = [kernel.name for kernel in kernels]
    for wanted in (r"AppendRopeKernelILi8ELi1ELb0ELb0E", r"AppendRopeKernelILi8ELi1ELb0ELb1E",
                   r"AppendRopeKernelILi8ELi2ELb0ELb0E", r"AppendRopeKernelILi8ELi2ELb0ELb1E",
                   r"RopeUpdateFewKernelILi4ELb1ELb0E", r"RopeUpdateFewKernelILi4ELb1ELb1E",
                   r"RopeUpdateManyKernel", r"MlaAppend512KernelINS_4Bf16ELb0E",
                   r"MlaAppend512KernelINS_4Bf16ELb1E", r"11FixedKernelILb0E",
                   r"11FixedKernelILb1E"):
        if not any(wanted in name for name in names):
            if not names:
                print("SKIPPED: machine code of the kernels is not here")
                return 0
            sys.exit(f"no kernel is named {wanted}: {names}")
    wrong = [f"{kernel.name}: {fault}" for kernel in kernels for fault in faults(kernel)]
    print("\n".join(wrong) or f"{len(kernels)} kernels are as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
