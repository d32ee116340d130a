// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "lariat/rope.h"

namespace lariat {

// The section, of three, whose position a pair turns by (mrope). constexpr, so that host and device
// code share it.
//   sizes: pairs of each section
constexpr int SectionOf(const int (&sizes)[3], MropeLayout layout, int pair) {
  if (layout == MropeLayout::kInterleaved) {
    const int section = pair % 3;
    return section != 0 && pair < 3 * sizes[section] ? section : 0;
  }
  return pair < sizes[0] ? 0 : pair < sizes[0] + sizes[1] ? 1 : 2;
}

}  // namespace lariat
