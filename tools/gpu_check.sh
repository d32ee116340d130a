#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: builds, runs every test on it and then the benchmarks. No test may skip
# for want of a device.
#   --tests      tests only
#   --bench      benchmarks only: writes docs/benchmarks/DATE-NAME.json and makes the tables of
#                docs/benchmarks.md from it (LARIAT_COMMIT: what was built, where git cannot tell)
#   --sanitize   compute-sanitizer's four tools over the tests of operations and of the cache only
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

if ((sanitize)); then
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  # Those that launch kernels; offsets past 2^32 bytes would take hours.
  programs=(append_rope_test append_rope_sections_test rope_update_test step_tables_test device_test
    cache_rope_test cache_graph_test mla_append_test mla_compress_test mla_expand_test cache_mla_test
    cache_mla_graph_test gemm_test mla_compress_graph_test dependent_launch_test host_storage_test
    cache_tier_rows_test)
  for program in "${programs[@]/#/build/release/tests/}"; do
    for tool in memcheck racecheck initcheck synccheck; do
      begin=$SECONDS
      # This project's kernels. In those of cuBLAS, whose copies are asynchronous, racecheck sees
      # hazards that are none, and takes most of its time.
      ours=(--kernel-name kernel_substring=lariat)
      # initcheck ends each launch before the next call, so no stream can be late under it.
      selection=()
      [[ $tool == initcheck && $program == *cache_graph_test ]] && selection=("~Two steps*")
      # It must see all that writes, too.
      [[ $tool == initcheck ]] && ours=()
      if "$sanitizer" --tool "$tool" "${ours[@]}" --error-exitcode 9 "$program" "${selection[@]}" \
        >"build/release/$tool.log" 2>&1; then
        verdict=clean
      else
        verdict=FAILED
        result=1
        tail -n 40 "build/release/$tool.log"
      fi
      echo "gpu_check: $tool $(basename "$program"): $verdict in $((SECONDS - begin)) s"
    done
  done
fi
exit "$result"
