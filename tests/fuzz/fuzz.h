// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share. Each defines LLVMFuzzerTestOneInput, which libFuzzer or fuzz_main.cc
// calls.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace lariat::fuzz {

// Ends the process where a reader broke its word; whoever called the target keeps the input.
inline void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

}  // namespace lariat::fuzz
