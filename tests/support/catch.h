// SPDX-License-Identifier: Apache-2.0
// One include for Catch2 2.13 and 3.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <cstdio>

// Ends a test case that cannot run here. The runner counts it as skipped, never as passed.
// (Catch2 2.13 has no SKIP, so both versions go through the text that ctest looks for.)
#define LARIAT_SKIP(reason)                 \
  do {                                      \
    std::printf("SKIPPED: %s\n", (reason)); \
    return;                                 \
  } while (false)
