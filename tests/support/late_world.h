// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/deferred_backend.h"
#include "support/row_world.h"

namespace lariat::testing {

inline std::shared_ptr<Backend> Cpu() {
  auto made = MakeBackend(BackendKind::kCpu, 0);
  if (!made.ok()) FAIL(made.status().ToString());
  return *made;
}

// A world on a stream that does nothing until it is asked to.
struct LateWorld {
  explicit LateWorld(const WorldOptions& options)
      : backend(std::make_shared<DeferredBackend>(Cpu())),
        world(options, Device(backend), [this](Stream stream, std::function<void()> work) {
          backend->Enqueue(stream, std::move(work));
        }) {}
  void Finish(Stream stream = {}) {
    REQUIRE(backend->Synchronize(stream).ok());
    REQUIRE(backend->failures() == 0);
  }
  std::shared_ptr<DeferredBackend> backend;
  RowWorld world;
};

// first, first + 1, ...
inline std::vector<TokenId> Tokens(TokenId first, std::int64_t count) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

}  // namespace lariat::testing
