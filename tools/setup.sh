#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a build of Lariat needs and this machine lacks, with apt (Debian 12, Ubuntu 24.04 and
# later), as root or through sudo. Where nothing is missing it changes nothing and needs no network.
# CUDA is never installed: a toolkit is used where CMake finds one.
set -euo pipefail

# The one list of what Lariat is built with: a probe and the Debian package that satisfies it. A tool
# or header that comes from elsewhere (CMAKE_PREFIX_PATH is searched for headers) is as good.
needs=(
  "command g++                                   g++"
  "command cmake                                 cmake"
  "command ninja                                 ninja-build"
  "command python3                               python3"
  "header  catch2/catch_all.hpp|catch2/catch.hpp catch2"
  "header  CLI/CLI.hpp                           libcli11-dev"
  "header  nlohmann/json.hpp                     nlohmann-json3-dev"
  "header  spdlog/spdlog.h                       libspdlog-dev"
  "header  xxhash.h                              libxxhash-dev"
  "header  cblas.h                               libopenblas-dev"
  "header  benchmark/benchmark.h                 libbenchmark-dev"
)
# What single tests need, which skip without it: no reason to fail where it cannot be installed.
wants=(
  "command pkg-config                            pkg-config"
  "numpy   1.23                                  python3-numpy"
)

have_header() {
  local flags=() prefix name
  command -v g++ >/dev/null || return 1
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    flags+=("-I$prefix/include")
  done
  IFS='|' read -ra names <<<"$1"
  for name in "${names[@]}"; do
    if echo "#if !__has_include(<$name>)
#error
#endif" | g++ -E -x c++ "${flags[@]}" -o /dev/null - 2>/dev/null; then
      return 0
    fi
  done
  return 1
}

# Whether an interpreter that tests/python_test.py tries has numpy.
have_numpy() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c "import numpy; numpy.from_dlpack" 2>/dev/null; then
      return 0
    fi
  done
  return 1
}

# missing LINE...: prints the packages of those lines that are missing, one a line.
missing() {
  local need kind what package
  for need in "$@"; do
    read -r kind what package <<<"$need"
    case $kind in
      command) command -v "$what" >/dev/null || echo "$package" ;;
      header) have_header "$what" || echo "$package" ;;
      numpy) have_numpy || echo "$package" ;;
    esac
  done
}

read -r -d "" -a packages <<<"$(missing "${needs[@]}")" || true
read -r -d "" -a wanted <<<"$(missing "${wants[@]}")" || true
if ((${#packages[@]} + ${#wanted[@]} == 0)); then
  exit 0
fi
if ((${#packages[@]} == 0)); then
  # As much as can be had here without asking anybody, and without a long wait for no network.
  if ! { ((EUID == 0)) && command -v apt-get >/dev/null &&
    apt-get -o Acquire::Retries=0 -o Acquire::http::Timeout=5 update -q >&2 &&
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      "${wanted[@]}" >&2; }; then
    echo "setup: without ${wanted[*]} some tests are skipped" >&2
  fi
  exit 0
fi
packages+=("${wanted[@]}")
if ! command -v apt-get >/dev/null; then
  echo "setup: missing ${packages[*]} (Debian's names), and there is no apt-get to install them" >&2
  exit 1
fi
sudo=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing ${packages[*]}; run as root, or install sudo" >&2
    exit 1
  fi
  sudo=(sudo)
fi
echo "setup: installing ${packages[*]}" >&2
"${sudo[@]}" apt-get update -q >&2
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
  "${packages[@]}" >&2
read -r -d "" -a packages <<<"$(missing "${needs[@]}")" || true
if ((${#packages[@]} > 0)); then
  echo "setup: installed, and still not found: ${packages[*]}" >&2
  exit 1
fi
