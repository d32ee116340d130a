// SPDX-License-Identifier: Apache-2.0
// The tests' main. Where Catch2 brings its own, this file only gives the library a source.
#ifndef LARIAT_CATCH2_HAS_MAIN
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
