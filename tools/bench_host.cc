// SPDX-License-Identifier: Apache-2.0
#include "bench_host.h"

#include <spdlog/fmt/fmt.h>

#include <string>
#include <vector>

#include "bench_manager.h"
#include "bench_tier.h"

namespace lariat::tools {

Result<nlohmann::ordered_json> RunManagerRows(const BenchOptions& options, bool table) {
  const Result<std::vector<ManagerRow>> rows = RunManagerBench(options.shapes);
  if (!rows.ok()) return rows.status();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (table) fmt::print("{:<16} {:>10} {:>10}  per\n", "op", "median ns", "p99 ns");
  for (const ManagerRow& row : *rows) {
    if (table) {
      fmt::print("{:<16} {:>10.1f} {:>10.1f}  {}, {}\n", row.op, row.median_s * 1e9,
                 row.p99_s * 1e9, row.per, row.shape);
    }
    list.push_back({{"op", row.op},
                    {"shape", row.shape},
                    {"backend", BackendName(BackendKind::kNull)},
                    {"per", row.per},
                    {"median_us", row.median_s * 1e6},
                    {"p99_us", row.p99_s * 1e6}});
  }
  return list;
}

Result<nlohmann::ordered_json> RunTierRows(const BenchOptions& options, const Device& device,
                                           bool table) {
  const Result<std::vector<TierRow>> rows = RunTierBench(device, options.shapes);
  if (!rows.ok()) return rows.status();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (table) {
    fmt::print("backend {} ({})\n{:<20} {:>12} {:>10} {:>8} {:>9} {:>8}\n",
               BackendName(device.kind()), device.name(), "op", "median us", "p99 us", "GB/s",
               "ceiling", "x alone");
  }
  const auto text = [](double value, const char* unit) {
    return value > 0 ? fmt::format("{:.2f}{}", value, unit) : std::string();
  };
  const auto number = [](double value) {
    return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  for (const TierRow& row : *rows) {
    const double fraction = row.ceiling > 0 ? row.gb_per_s / row.ceiling : 0;
    if (table) {
      fmt::print("{:<20} {:>12.2f} {:>10.2f} {:>8} {:>9} {:>8}  {}\n", row.op, row.median_s * 1e6,
                 row.p99_s * 1e6, text(row.gb_per_s, ""), text(100 * fraction, " %"),
                 text(row.alone, ""), row.shape);
    }
    list.push_back({{"op", row.op},
                    {"shape", row.shape},
                    {"backend", BackendName(device.kind())},
                    {"median_us", row.median_s * 1e6},
                    {"p99_us", row.p99_s * 1e6},
                    {"gb_per_s", number(row.gb_per_s)},
                    {"ceiling", number(row.ceiling)},
                    {"fraction", number(fraction)},
                    {"times_alone", number(row.alone)}});
  }
  return list;
}

}  // namespace lariat::tools
