#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/doxygen.sh OUTPUT: the public headers' pages, OUTPUT/html/index.html. Fails on whatever Doxygen
# warns about, above all on what has no comment.
set -euo pipefail
output=$(realpath -m "${1:?usage: tools/doxygen.sh OUTPUT}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "$output"
doxygen - <<<"$(cat docs/Doxyfile)
OUTPUT_DIRECTORY = \"$output\"
WARN_LOGFILE = \"$output/warnings\""
if [[ -s $output/warnings ]]; then
  cat "$output/warnings"
  exit 1
fi
