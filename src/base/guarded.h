// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <exception>

#include "lariat/status.h"

namespace lariat {

// Memory may run out in any call; a failed call leaves everything as it was, and says so.
template <class F>
auto Guarded(F&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception&) {
    return Status::OutOfMemory();
  }
}

}  // namespace lariat
