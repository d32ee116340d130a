#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: builds, runs every test on it and then the benchmarks. No test may skip
# for want of a device.
#   --tests      tests only
#   --bench      benchmarks only: writes docs/benchmarks/DATE-NAME.json and makes the tables of
#                docs/benchmarks.md from it (LARIAT_COMMIT: what was built, where git cannot tell)
#   --sanitize   compute-sanitizer's four tools over the test programs only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=1 bench=1 sanitize=0
case ${1:-} in
  "") ;;
  --tests) bench=0 ;;
  --bench) tests=0 ;;
  --sanitize) tests=0 bench=0 sanitize=1 ;;
  *)
    sed -n '3,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac

tools/setup.sh
begin=$SECONDS
cmake --preset release -DLARIAT_CUDA=ON
cmake --build --preset release
echo "gpu_check: built in $((SECONDS - begin)) s"
result=0
# Tests use the devices that they find: first be sure that there is one.
if ! build/release/tools/lariat bench rope-update --hot --backend cuda; then
  echo "gpu_check: no CUDA device answers" >&2
  exit 1
fi

if ((tests)); then
  ctest --preset release -j 4 --no-tests=error --output-junit "$PWD/build/release/tests.xml" ||
    result=1
  python3 tools/count_tests.py --allowed tests/skips.txt gpu=build/release/tests.xml || result=1
  # Says so and passes where torch is not installed.
  LARIAT_C=build/release/src/liblariat_c.so python3 -B examples/python/torch_view.py cuda || result=1
fi

if ((bench)); then
  LARIAT_BACKEND=cuda build/release/tools/lariat bench all --explain \
    --json build/release/bench.json || result=1
  python3 tools/bench_tables.py collect build/release/bench.json --build build/release || result=1
  python3 tools/bench_tables.py write || result=1
fi

# $1: of compute-sanitizer's tools, $2: a test program. Says how it went.
sanitize_one() {
  local tool=$1 program=build/release/tests/$2 log=build/release/sanitize/$1.$2.log
  local begin=$SECONDS verdict=clean options=(--error-exitcode 9) selection=()
  case $tool in
    # Tests ask for more memory than there is.
    memcheck) options+=(--report-api-errors no --kernel-name kernel_substring=lariat) ;;
    synccheck) options+=(--kernel-name kernel_substring=lariat) ;;
    # It sees hazards that are none in cuBLAS's kernels, whose copies are asynchronous, and fails where it
    # is told to leave them out.
    racecheck) options=() ;;
    # It does not see what cuBLAS's kernels store by bulk copies, so their results may not be read from
    # memory that nothing else wrote; and it ends each launch before the next call, so that no stream
    # can be late under it.
    initcheck)
      case $2 in
        mla_append_test) selection=("~mla append from hidden*") ;;
        verify_test) selection=("~MLA recordings verify on CUDA") ;;
        cache_graph_test) selection=("~Two steps*" "~K164*") ;;
      esac
      ;;
  esac
  "$sanitizer" --tool "$tool" "${options[@]}" "$program" "${selection[@]}" >"$log" 2>&1 ||
    verdict=FAILED
  if [[ $tool == racecheck ]] && grep -q "access at .*lariat\|Internal Sanitizer" "$log"; then
    verdict=FAILED
  fi
  if grep -q "terminated before first instrumented API call" "$log" &&
    grep -q "All tests passed\|^test cases:.* skipped" "$log" && ! grep -q " failed" "$log"; then
    verdict="uses no device"
  fi
  echo "gpu_check: $tool $2: $verdict in $((SECONDS - begin)) s"
  [[ $verdict != FAILED ]] || { tail -n 40 "$log" && false; }
}

if ((sanitize)); then
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  mkdir -p build/release/sanitize
  # All programs, but offsets past 2^32 bytes, which would take hours; what uses no device; and the
  # one that is a profiler itself, of which there can be one in a process.
  none='^(large_offset_test|cache_random_.*_test|device_range_test)$'
  programs=$(cd build/release/tests && printf '%s\n' *_test | grep -Ev "$none")
  export sanitizer LARIAT_FEW_CASES=1
  export -f sanitize_one
  for tool in memcheck racecheck initcheck synccheck; do
    for program in $programs; do
      # Both of its cases read products from fresh memory.
      [[ $tool.$program == initcheck.cache_mla_graph_test ]] || echo "$tool $program"
    done
  done | xargs -P "$(nproc)" -L 1 bash -c 'SECONDS=0; sanitize_one "$0" "$1"' || result=1
fi
exit "$result"
