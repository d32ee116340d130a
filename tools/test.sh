#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/test.sh [PRESET ...]: installs what is missing, then builds and runs every test of each
# preset. Default: release (with CUDA where a toolkit is found), asan and tsan.
# Fails on a failed test, and on more skipped tests than tests/skips.txt allows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

presets=("$@")
if ((${#presets[@]} == 0)); then
  presets=(release asan tsan)
fi

# Whether the sanitizers $1 are left to clang++, which compiles for them in half of g++'s time, and as a
# second compiler: where it is here with their libraries, and the caller chose no other one.
by_clang() {
  [[ -z ${CXX:-} && -z ${CC:-} ]] && command -v clang >/dev/null &&
    echo 'int main() {}' | clang++ -x c++ -std=c++20 "-fsanitize=$1" - -o /dev/null 2>/dev/null
}

tools/setup.sh
result=0
reports=()
for preset in "${presets[@]}"; do
  begin=$SECONDS
  selection=(-LE slow)  # ten million random calls: for a night
  targets=()
  if [[ $preset == tsan ]]; then
    # What runs on more than one thread is marked so; the rest would only repeat asan's work.
    selection=(-L threads)
    targets=(--target lariat_thread_tests)
  fi
  configure=(cmake --preset "$preset")
  if { [[ $preset == asan ]] && by_clang address,undefined; } ||
    { [[ $preset == tsan ]] && by_clang thread; }; then
    # (g++'s warnings are errors, in the release preset.)
    configure=(env CC=clang CXX=clang++ "${configure[@]}" -DLARIAT_WERROR=OFF)
    if command -v ld.lld >/dev/null; then
      configure+=(-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld)
    fi
  fi
  rm -f "build/$preset/tests.xml"
  if ! { "${configure[@]}" && cmake --build --preset "$preset" "${targets[@]}"; }; then
    echo "test: the $preset build failed" >&2
    result=1
    continue
  fi
  built=$SECONDS
  # ctest takes any number of skipped tests for a success; count_tests.py does not.
  # One more than there are processors: some tests wait for clocks.
  ctest --preset "$preset" -j "$(($(nproc) + 1))" --no-tests=error "${selection[@]}" \
    --output-junit "$PWD/build/$preset/tests.xml" || result=1
  if [[ $preset == release ]] && ! tools/run.sh --check >"build/$preset/run.txt"; then
    echo "test: tools/run.sh --check failed: build/$preset/run.txt" >&2
    result=1
  fi
  echo "test: $preset: built in $((built - begin)) s, tested in $((SECONDS - built)) s"
  reports+=("$preset=build/$preset/tests.xml")
done
# Its last line sums up all presets.
python3 tools/count_tests.py --allowed tests/skips.txt "${reports[@]}" || result=1
exit "$result"
