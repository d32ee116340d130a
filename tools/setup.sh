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
# What it does without: tiny_server and its metrics, and what single tests need, which skip else.
wishes=(
  "command doxygen                               doxygen"
  "command pkg-config                            pkg-config"
  "numpy   1.23                                  python3-numpy"
  "header  httplib.h                             libcpp-httplib-dev"
  "header  prometheus/metric_family.h            prometheus-cpp-dev"
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

# Prints the packages of a list that are missing, one a line.
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

# Prints why nothing can be installed, or nothing.
obstacle() {
  if ! command -v apt-get >/dev/null; then
    echo "(Debian's names), and there is no apt-get to install them"
  elif ((EUID != 0)) && ! command -v sudo >/dev/null; then
    echo "(run as root, or install sudo)"
  fi
}

install() {
  local sudo=()
  if ((EUID != 0)); then
    sudo=(sudo)
  fi
  echo "setup: installing $*" >&2
  "${sudo[@]}" apt-get update -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20 >&2 || true
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    "$@" >&2
}

read -r -d "" -a packages <<<"$(missing "${needs[@]}")" || true
if ((${#packages[@]} > 0)); then
  why=$(obstacle)
  if [[ -n $why ]]; then
    echo "setup: missing ${packages[*]} $why" >&2
    exit 1
  fi
  install "${packages[@]}"
  read -r -d "" -a packages <<<"$(missing "${needs[@]}")" || true
  if ((${#packages[@]} > 0)); then
    echo "setup: installed, and still not found: ${packages[*]}" >&2
    exit 1
  fi
fi

read -r -d "" -a packages <<<"$(missing "${wishes[@]}")" || true
if ((${#packages[@]} > 0)); then
  if [[ -n $(obstacle) ]] || ! install "${packages[@]}"; then
    echo "setup: without ${packages[*]} something is not built, or not tested; both are told" >&2
  fi
fi
