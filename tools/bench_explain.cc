// SPDX-License-Identifier: Apache-2.0
#include "bench_explain.h"

#include <algorithm>

namespace lariat::tools {
namespace {

// Whether a line of Device::Tuning is about a product of the workload: those have its inner length
// and as many rows, rounded up to a power of two.
bool IsAbout(const std::string& line, const Workload& workload) {
  const std::vector<Product> products = workload.products();
  return std::any_of(products.begin(), products.end(), [&](const Product& p) {
    std::int64_t rows = 1;
    while (rows < p.rows) rows *= 2;
    return line.starts_with("product of " + std::to_string(rows) + " rows") &&
           line.find(" by " + std::to_string(p.inner) + ",") != std::string::npos;
  });
}

}  // namespace

std::vector<std::string> Explain(Device& device, Workload& workload, Stream stream) {
  if (device.kind() != BackendKind::kCuda) return device.Tuning();
  std::vector<std::string> lines = ExplainKernels(workload, stream);
  for (std::string& line : device.Tuning()) {
    if (IsAbout(line, workload)) lines.push_back(std::move(line));
  }
  return lines;
}

#ifndef LARIAT_BENCH_CUDA
std::vector<std::string> ExplainKernels(Workload&, Stream) { return {}; }
#endif

}  // namespace lariat::tools
