#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes Doxygen's comments of a header's plain ones (docs/Doxyfile's INPUT_FILTER).

usage: doxygen_filter.py HEADER

A comment belongs to the declaration that it stands before, or behind on its line. It belongs to all of
a run too: the declarations that follow without an empty line and have no comment of their own. A field,
an enumerator, an accessor, a copy or a move of a class that has a comment may do without: it is told
by its class. What has no comment, by these rules, Doxygen warns about: types, functions, and the
fields of types without a comment. No line moves.
"""
import re
import sys

ALONE = re.compile(r"^(\s*)//(?![/!])\s?(.*)$")
BEHIND = re.compile(r"^(.*?\S)\s+//(?![/!<])\s?(.*)$")
TYPE = re.compile(r"^\s*(?:typedef )?(?:struct|class|enum class|enum)\b ?(?:\[\[nodiscard\]\] )?(\w*)[^;]*\{$")
C_ALONE = re.compile(r"^(\s*)/\*(?!\*|<)(.*)$")
C_BEHIND = re.compile(r"^(.*?[;,}])\s+/\*(?!\*|<)(.*\*/)$")


SEVERAL = re.compile(r"^(\s*)((?:const )?[\w:]+(?:<\w+>)?\*? )(\w+(?: = [\w.]+)?(?:, \w+(?: = [\w.]+)?)+);$")


def each(code, text, told=0):
    """The declarations of a line, apart, each with the comment; the first `told` have it already."""
    several = SEVERAL.match(code)
    if not several:
        return None
    parts = [f"{several.group(2)}{name};" for name in several.group(3).split(", ")]
    return several.group(1) + " ".join(part if i < told else f"/** {text} */ {part}"
                                       for i, part in enumerate(parts))


class Filter:
    def __init__(self):
        self.before = []  # the comment that is being read
        self.run = ""  # the comment of this run of declarations
        self.starts = True  # whether a declaration may start on this line
        self.column = None  # of a comment that stands behind the line before
        self.types = []  # name and comment of those that are open
        self.depth = 0  # of parentheses
        self.in_c = False  # inside of a comment of C's

    def line(self, line):
        c = C_ALONE.match(line)
        if self.in_c or c:
            self.before.append((c.group(2) if c else line).replace("*/", "").strip(" *"))
            self.in_c = "*/" not in line
            return f"{c.group(1)}/**{c.group(2)}" if c else line
        alone = ALONE.match(line)
        if alone and self.depth == 0:
            if self.column == len(alone.group(1)):  # goes on with the one behind the line before
                return f"{alone.group(1)}///< {alone.group(2)}"
            self.column = None
            self.before.append(alone.group(2))
            return f"{alone.group(1)}/// {alone.group(2)}"
        if line.lstrip().startswith("}") and self.types and self.depth == 0:
            if re.match(r"\s*\}( \w+)?;", line):
                self.types.pop()
        if not line.strip() or re.match(r"\s*(#|\}|public:|private:|extern \"C\")", line):
            run = self.run if line.strip() == "}" else ""  # of a function's body
            self.before, self.run, self.starts, self.column = [], run, True, None
            return line
        return self.code(line)

    def code(self, line):
        if re.match(r"\s*template <.*>$", line):
            return line
        behind = (BEHIND.match(line) or C_BEHIND.match(line)) if self.depth == 0 else None
        code = behind.group(1) if behind else line.split("//")[0].rstrip()
        self.column = line.rindex("//") if behind and "//" in line else None
        told = self.run
        if self.starts and self.before:
            self.run = " ".join(self.before)
        elif self.starts and not told and self.types:
            name, of_type = self.types[-1]
            special = re.match(rf"\s*(explicit )?(constexpr )?~?{name}\(|.*\boperator\b", code) if name else None
            if special or not re.search(r"\w\([^)]", code):
                told = of_type
        first = self.starts and bool(self.before)  # Doxygen has read the comment before it
        covered = self.starts and not behind and not first and told
        type_ = TYPE.match(code) if self.starts else None
        if type_:
            self.types.append((type_.group(1), self.run))
            self.run = ""
        self.before = []
        self.depth += code.count("(") - code.count(")")
        self.starts = self.depth == 0 and code.rstrip().endswith((";", "{", "}", ","))
        if behind:
            end = " */" if behind.group(2).endswith("*/") else ""
            text = behind.group(2)[: -2 if end else None].strip()
            if each(code, text):
                return each(code, text)
            return f"{code}  /**< {text} */" if end else f"{code}  ///< {text}"
        if (first or covered) and each(code, told):
            return each(code, self.run if first else told, 1 if first else 0)
        if covered:
            indent = len(line) - len(line.lstrip())
            return f"{line[:indent]}/** {told} */ {line[indent:]}"
        return line


def main():
    header = Filter()
    with open(sys.argv[1], encoding="utf-8") as file:
        for line in file.read().splitlines():
            print(header.line(line))


if __name__ == "__main__":
    main()
