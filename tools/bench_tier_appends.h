// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>

#include "bench_workload.h"
#include "lariat/kv_cache.h"

namespace lariat::tools {

// The appends of a prepared step, layer by layer, as launches to be timed. The rows of all layers
// are the same ones, at `rows`.
class CacheAppends final : public Workload {
 public:
  CacheAppends(KVCache& cache, const Step& step, const void* rows)
      : Workload(/*hot=*/false), cache_(cache), step_(step), rows_(rows) {}

  std::string op() const override { return "tier-append"; }
  DType dtype() const override { return cache_.config().dtype; }
  // Rows read and written.
  std::int64_t bytes() const override {
    return 2 * step_.num_tokens() * cache_.footprint().bytes_per_token / sets();
  }
  std::int64_t flops() const override { return 0; }
  std::int64_t sets() const override { return std::ssize(cache_.config().layers); }
  Status Prepare(Device&, Stream) override { return {}; }
  Status Check(Stream) override { return {}; }
  Status Launch(std::int64_t i, Stream stream) override {
    const AppendInputs inputs{.dtype = dtype(), .k = rows_, .v = rows_};
    return cache_.Append(step_, static_cast<int>(i % sets()), inputs, stream);
  }

 protected:
  std::vector<ShapeField> fields() override { return {}; }
  Status Complete() override { return {}; }
  double set_size() const override { return 0; }

 private:
  KVCache& cache_;
  const Step& step_;
  const void* const rows_;
};

}  // namespace lariat::tools
