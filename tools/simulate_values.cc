// SPDX-License-Identifier: Apache-2.0
#include "simulate_values.h"

#include <charconv>
#include <system_error>

#include "commands.h"

namespace lariat::tools {

std::string NotBuilt(const std::string& what) { return what + ": not built in this version"; }

Result<std::int64_t> ParseMaxLength(const std::string& text, const ModelConfig& model) {
  if (text == "none") return std::int64_t{0};
  if (text == "model") return model.max_position_embeddings;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    return InvalidArgument("--max-length = " + text + "; allowed: a number >= 1, model, none");
  }
  return value;
}

Result<Speculation> ParseSpeculate(const std::string& text) {
  Speculation parsed;
  if (text.empty()) return parsed;
  const char* const end = text.data() + text.size();
  const auto drafts = std::from_chars(text.data(), end, parsed.drafts);
  bool good = drafts.ec == std::errc() && drafts.ptr != end && *drafts.ptr == ':';
  if (good) {
    const auto acceptance = std::from_chars(drafts.ptr + 1, end, parsed.acceptance);
    good = acceptance.ec == std::errc() && acceptance.ptr == end;
  }
  good = good && parsed.drafts >= 1 && parsed.drafts <= 64 && parsed.acceptance >= 0 &&
         parsed.acceptance <= 1;
  if (good) return parsed;
  return InvalidArgument("--speculate = " + text +
                         "; allowed: K:P, drafts of a step in 1..64 and the probability in 0..1 "
                         "that one is accepted, as in 4:0.7");
}

Result<MemoryConfig> ParseMemory(const SimulateOptions& options, BackendKind backend) {
  MemoryConfig memory;
  if (options.unlimited) {
    if (backend != BackendKind::kNull) {
      return InvalidArgument("--unlimited needs --backend null: other backends have real memory");
    }
    memory.unlimited = true;
  } else if (options.blocks > 0) {
    memory.num_blocks = options.blocks;
  } else {
    if (options.memory == "auto") return Unsupported(NotBuilt("--memory auto"));
    const Result<std::int64_t> bytes = ParseSize(options.memory);
    if (!bytes.ok()) {
      return InvalidArgument("--memory = " + bytes.status().message());
    }
    memory.bytes = *bytes;
  }
  return memory;
}

Result<HostTier> ParseHostTier(const SimulateOptions& options) {
  HostTier host;
  if (options.host_memory.empty()) {
    if (options.preempt == "recompute") return host;
    return InvalidArgument("--preempt " + options.preempt + " needs --host-memory");
  }
  const Result<std::int64_t> bytes = ParseSize(options.host_memory);
  if (!bytes.ok()) return InvalidArgument("--host-memory = " + bytes.status().message());
  host.bytes = *bytes;
  if (options.write_policy == "through") host.write = WritePolicy::kThrough;
  if (options.write_policy == "after-hits") host.write = WritePolicy::kAfterHits;
  return host;
}

Preempt ParsePreempt(const std::string& name) {
  if (name == "swap") return Preempt::kSwap;
  return name == "auto" ? Preempt::kAuto : Preempt::kRecompute;
}

int ChooseBlockSize(int given, const ModelConfig& model) {
  if (given > 0) return given;
  return model.mla.kv_lora_rank > 0 ? 64 : 16;
}

DType ChooseDType(const std::string& name, DType of_model) {
  for (const DType dtype : {DType::kFP32, DType::kFP16, DType::kBF16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return of_model == DType::kFP32 ? DType::kBF16 : of_model;
}

InjectedFault ParseFault(const std::string& name) {
  if (name == "stale") return InjectedFault::kStale;
  if (name == "shift") return InjectedFault::kShift;
  if (name == "bit") return InjectedFault::kBit;
  return InjectedFault::kNone;
}

}  // namespace lariat::tools
