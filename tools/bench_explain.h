// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "bench_workload.h"
#include "lariat/device.h"

namespace lariat::tools {

// How a launch of the workload is done, a line each. On CUDA its kernels as a graph captures them,
// names and template arguments (which are the path that was taken), blocks, threads, shared memory,
// registers, and the algorithms of its products; on the CPU what the device tells.
// workload: prepared
std::vector<std::string> Explain(Device& device, Workload& workload, Stream stream);

// The kernels and copies of one launch. Empty in a build without CUDA.
std::vector<std::string> ExplainKernels(Workload& workload, Stream stream);

}  // namespace lariat::tools
