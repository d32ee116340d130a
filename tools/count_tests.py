#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up ctest runs and fails on more skipped tests than tests/skips.txt allows.

usage: count_tests.py --allowed tests/skips.txt PRESET=JUNIT.xml ...

A test skips by printing "SKIPPED: reason". Each line of the list of allowed skips is
    PRESET MOST REASON
with REASON a regular expression for the whole reason; a skip that no line covers is not allowed.
ctest takes the text for a skip whatever else the test did, so a test that failed after it is found
here. The last line is "N passed, N failed, N skipped" over all presets.
"""
import argparse
import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

SKIP = re.compile(r"^SKIPPED: (.*)$", re.MULTILINE)
# What Catch2 and a sanitizer say of a failure.
FAILURE = re.compile(r"^\S+: FAILED:|^test cases:.*\d+ failed|ERROR: \w+Sanitizer|runtime error:|"
                     r"WARNING: ThreadSanitizer", re.MULTILINE)


def read_allowed(path):
    """The lines of the list as (preset, most, pattern)."""
    allowed = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.split("#", 1)[0].strip()
            if not line:
                continue
            fields = line.split(None, 2)
            if len(fields) != 3 or not fields[1].isdigit():
                sys.exit(f"{path}:{number}: want PRESET MOST REASON, not '{line}'")
            allowed.append((fields[0], int(fields[1]), re.compile(fields[2])))
    return allowed


def read_report(path):
    """Counts of passed and failed tests, and (name, reason) of those that skipped."""
    passed, failed, skips = 0, [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, status = case.get("name"), case.get("status")
        output = case.findtext("system-out") or ""
        if status == "run":
            passed += 1
        elif status == "notrun" and SKIP.search(output) and not FAILURE.search(output):
            skips.append((name, SKIP.search(output).group(1)))
        else:
            failed.append(name)
    return passed, failed, skips


def judge(preset, skips, allowed):
    """Prints the skips of a preset by reason; what is wrong with them, as texts."""
    errors = []
    by_line = collections.Counter()
    for name, reason in skips:
        for index, (line_preset, _, pattern) in enumerate(allowed):
            if line_preset == preset and pattern.fullmatch(reason):
                by_line[index] += 1
                break
        else:
            errors.append(f"{preset}: {name}: no line allows the skip '{reason}'")
    for index, count in sorted(by_line.items()):
        _, most, pattern = allowed[index]
        print(f"  {preset}: {count} skipped of {most} allowed: {pattern.pattern}")
        if count > most:
            errors.append(f"{preset}: {count} tests skipped, {most} are allowed: {pattern.pattern}")
    return errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--allowed", required=True)
    parser.add_argument("reports", nargs="*", metavar="PRESET=JUNIT.xml")
    arguments = parser.parse_args()
    allowed = read_allowed(arguments.allowed)
    total = collections.Counter()
    errors = []
    for report in arguments.reports:
        preset, path = report.split("=", 1)
        try:
            passed, failed, skips = read_report(path)
        except (OSError, ElementTree.ParseError) as error:
            errors.append(f"{preset}: no report: {error}")
            continue
        print(f"{preset}: {passed} passed, {len(failed)} failed, {len(skips)} skipped")
        errors += [f"{preset}: failed: {name}" for name in failed]
        errors += judge(preset, skips, allowed)
        total.update(passed=passed, failed=len(failed), skipped=len(skips))
    for error in errors:
        print(f"error: {error}")
    if not errors and total["passed"] == 0:
        errors.append("no test ran")
        print("error: no test ran")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
