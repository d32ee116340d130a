// SPDX-License-Identifier: Apache-2.0
#include "bench_workload.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

namespace lariat::tools {

Status Workload::Configure(std::string_view text) {
  Status status = ReadShape(text, fields());
  if (status.ok()) status = Complete();
  if (!status.ok()) return status;
  const double machine =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (memory() <= machine) return Status::Ok();
  return {Code::kResourceExhausted, "--shape " + shape() + ": " + NoRoom().message()};
}

// Each set is made on the host and held by the device, which may be the host.
double Workload::memory() const {
  const double rotating = hot_ ? 0.0 : static_cast<double>(kColdBytes);
  return 2 * (std::max(set_size(), rotating) + shared_size());
}

Status Workload::NoRoom() const {
  return ResourceExhausted(
      fmt::format("takes about {:.4g} bytes of memory, more than there is", memory()));
}

}  // namespace lariat::tools
