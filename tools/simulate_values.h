// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "lariat/simulator.h"
#include "lariat/status.h"
#include "simulate_options.h"

// The values of flags of `lariat simulate` that are more than a number; every error names the flag,
// what was given and what is allowed.

namespace lariat::tools {

// "x: not built in this version"
std::string NotBuilt(const std::string& what);

Result<std::int64_t> ParseMaxLength(const std::string& text, const ModelConfig& model);

struct Speculation {
  int drafts = 0;
  double acceptance = 0;
};
// "K:P". Empty: no speculation.
Result<Speculation> ParseSpeculate(const std::string& text);

Result<MemoryConfig> ParseMemory(const SimulateOptions& options, BackendKind backend);
Result<HostTier> ParseHostTier(const SimulateOptions& options);
Preempt ParsePreempt(const std::string& name);
// Readers of MLA's rows take blocks of 64.
int ChooseBlockSize(int given, const ModelConfig& model);
DType ChooseDType(const std::string& name, DType of_model);
InjectedFault ParseFault(const std::string& name);

}  // namespace lariat::tools
