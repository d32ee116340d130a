#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds `lariat` and simulates the demo trace. Further arguments go to
# `lariat simulate`; --trace or --workload replaces the demo. The build talks on stderr, so that
# stdout holds the simulation's results alone.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Whether an argument of the simulation names option $1.
given() {
  local option=$1 argument
  shift
  for argument in "$@"; do
    [[ $argument == "$option" || $argument == "$option="* ]] && return 0
  done
  return 1
}

"$root/tools/setup.sh"
(
  cd "$root"
  cmake --preset release
  cmake --build --preset release --target lariat_tool
) >&2

arguments=()
if ! given --trace "$@" && ! given --workload "$@"; then
  arguments+=(--trace "$root/examples/traces/demo.jsonl")
fi
# A small model and pool: on a CPU every key and value is really written.
if ! given --model "$@"; then
  arguments+=(--model smollm2-135m)
fi
if ! given --memory "$@" && ! given --blocks "$@" && ! given --unlimited "$@"; then
  arguments+=(--memory 512MiB)
fi
# From where it was called: paths among the arguments are the caller's.
exec "$root/build/release/tools/lariat" simulate "${arguments[@]}" "$@"
