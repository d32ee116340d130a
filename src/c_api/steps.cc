// SPDX-License-Identifier: Apache-2.0
// The life of a step.
#include <string>
#include <utility>

#include "c_api/call.h"
#include "c_api/convert.h"
#include "c_api/structs.h"

using namespace lariat;         // NOLINT: the whole file is the C API's
using namespace lariat::c_api;  // NOLINT

namespace lariat::c_api {
namespace {

void FillFailure(const PlanFailure& from, lariat_plan_failure* caller, lariat_plan_failure to) {
  to.num_sequences = static_cast<std::int64_t>(from.sequences.size());
  to.needed = from.needed;
  to.available = from.available;
  to.in_transit = from.in_transit;
  for (std::size_t i = 0; i < from.sequences.size(); ++i) {
    if (i == static_cast<std::size_t>(to.capacity)) break;
    to.sequences[i] = static_cast<std::uint64_t>(from.sequences[i].sequence);
    to.blocks[i] = from.sequences[i].blocks;
  }
  Fill(caller, to);
}

Status CheckFailure(const lariat_plan_failure* failure, lariat_plan_failure& to) {
  if (failure == nullptr) return Status::Ok();
  Status status = Read("failure", failure, to);
  if (status.ok()) status = CheckArray("failure.sequences", to.sequences, to.capacity);
  return status.ok() ? CheckArray("failure.blocks", to.blocks, to.capacity) : status;
}

Status Plan(Handle& handle, const lariat_step_item* items, std::int32_t num_items,
            const lariat_step_shape* shape, lariat_plan_failure* failure, std::uint64_t* step) {
  if (step == nullptr) return NullResult("step");
  StepShape padded;
  if (shape != nullptr) {
    lariat_step_shape from;
    if (Status status = Read("shape", shape, from); !status.ok()) return status;
    padded = {.max_tokens = from.max_tokens, .max_sequences = from.max_sequences};
  }
  lariat_plan_failure caller = {};
  if (Status status = CheckFailure(failure, caller); !status.ok()) return status;
  handle.items.clear();
  Status status = ForEach("items", items, num_items, [&](const lariat_step_item& item) -> Status {
    const auto positions = Span("items.positions", item.positions, item.num_positions);
    if (!positions.ok()) return positions.status();
    handle.items.push_back({.sequence = SequenceId{item.sequence},
                            .num_tokens = item.num_tokens,
                            .num_drafts = item.num_drafts,
                            .positions = *positions});
    return Status::Ok();
  });
  if (!status.ok()) return status;
  handle.steps.reserve(handle.steps.size() + 1);
  PlanFailure why;
  Result<Step> planned =
      handle.cache->Plan(handle.items, padded, failure == nullptr ? nullptr : &why);
  if (planned.ok()) {
    *step = planned->id();
    handle.steps.push_back(std::move(*planned));
  } else if (failure != nullptr && (planned.status().code() == Code::kResourceExhausted ||
                                    planned.status().code() == Code::kNeverFits)) {
    FillFailure(why, failure, caller);
  }
  return planned.status();
}

// What the calls with a step share: call(handle, step).
template <class F>
lariat_code WithStep(lariat_cache* cache, std::uint64_t id, F&& call) {
  return Call(cache, [&](Handle& handle) -> Status {
    for (Step& step : handle.steps) {
      if (step.id() == id) return call(handle, step);
    }
    return InvalidArgument(std::string("step: there is no step ")
                               .append(std::to_string(id))
                               .append(", or it has ended"));
  });
}

// A step that has ended, or ends here.
void Forget(Handle& handle, Step& step) {
  std::swap(step, handle.steps.back());
  handle.steps.pop_back();
}

Status Commit(Handle& handle, Step& step, const lariat_commit* commits, std::int32_t num_commits,
              void* stream) {
  handle.commits.clear();
  Status status =
      ForEach("commits", commits, num_commits, [&](const lariat_commit& commit) -> Status {
        const auto tokens = Span("commits.tokens", commit.tokens, commit.num_tokens);
        if (!tokens.ok()) return tokens.status();
        handle.commits.push_back(
            {.sequence = SequenceId{commit.sequence}, .kept = commit.kept, .tokens = *tokens});
        return Status::Ok();
      });
  if (status.ok()) status = handle.cache->Commit(step, handle.commits, {stream});
  if (!step.valid()) Forget(handle, step);
  return status;
}

// One layer's call: converted inputs, then call(cache, step, inputs).
template <class To, class From, class F>
lariat_code WithInputs(lariat_cache* cache, std::uint64_t step, const From* inputs, F&& call) {
  return WithStep(cache, step, [&](Handle& handle, Step& found) -> Status {
    To converted;
    Status status = Convert(inputs, converted);
    return status.ok() ? call(*handle.cache, found, converted) : status;
  });
}

template <class To, class From>
lariat_code Warm(lariat_cache* cache, std::int32_t layer, const From* inputs, void* stream) {
  return Call(cache, [&](Handle& handle) -> Status {
    To converted;
    Status status = Convert(inputs, converted);
    return status.ok() ? handle.cache->Warmup(layer, converted, {stream}) : status;
  });
}

}  // namespace
}  // namespace lariat::c_api

lariat_code lariat_step_plan(lariat_cache* cache, const lariat_step_item* items,
                             std::int32_t num_items, const lariat_step_shape* shape,
                             lariat_plan_failure* failure, std::uint64_t* step) {
  return Call(cache,
              [&](Handle& handle) { return Plan(handle, items, num_items, shape, failure, step); });
}

lariat_code lariat_step_drop(lariat_cache* cache, std::uint64_t step) {
  return WithStep(cache, step, [](Handle& handle, Step& found) {
    Forget(handle, found);
    return Status::Ok();
  });
}

lariat_code lariat_step_get_info(lariat_cache* cache, std::uint64_t step, lariat_step_info* info) {
  return WithStep(cache, step, [&](Handle&, const Step& found) -> Status {
    if (Status status = Check("info", info); !status.ok()) return status;
    lariat_step_info to = {};
    to.num_sequences = static_cast<std::int32_t>(found.rows().size());
    to.padded_sequences = found.padded_sequences();
    to.num_tokens = found.num_tokens();
    to.padded_tokens = found.padded_tokens();
    Fill(info, to);
    return Status::Ok();
  });
}

lariat_code lariat_step_get_rows(lariat_cache* cache, std::uint64_t step, std::int32_t index,
                                 lariat_rows* rows) {
  return WithStep(cache, step, [&](Handle&, const Step& found) -> Status {
    if (Status status = Check("rows", rows); !status.ok()) return status;
    if (index < 0 || static_cast<std::size_t>(index) >= found.rows().size()) {
      return InvalidArgument(std::string("index is ")
                                 .append(std::to_string(index))
                                 .append("; the step has ")
                                 .append(std::to_string(found.rows().size()))
                                 .append(" sequences"));
    }
    const StepRows& from = found.rows()[static_cast<std::size_t>(index)];
    lariat_rows to = {};
    to.sequence = static_cast<std::uint64_t>(from.sequence);
    to.first_row = from.first_row;
    to.start = from.start;
    to.count = from.count;
    to.hit = from.hit;
    Fill(rows, to);
    return Status::Ok();
  });
}

lariat_code lariat_step_prepare(lariat_cache* cache, std::uint64_t step, void* stream) {
  return WithStep(cache, step, [&](Handle& handle, Step& found) {
    return handle.cache->Prepare(found, {stream});
  });
}

lariat_code lariat_step_commit(lariat_cache* cache, std::uint64_t step,
                               const lariat_commit* commits, std::int32_t num_commits,
                               void* stream) {
  return WithStep(cache, step, [&](Handle& handle, Step& found) {
    return Commit(handle, found, commits, num_commits, stream);
  });
}

lariat_code lariat_step_discard(lariat_cache* cache, std::uint64_t step, void* stream) {
  return WithStep(cache, step, [&](Handle& handle, Step& found) {
    Status status = handle.cache->Discard(found, {stream});
    if (!found.valid()) Forget(handle, found);
    return status;
  });
}

lariat_code lariat_step_append(lariat_cache* cache, std::uint64_t step, std::int32_t layer,
                               const lariat_append_inputs* inputs, void* stream) {
  return WithInputs<AppendInputs>(cache, step, inputs,
                                  [&](KVCache& kv, const Step& found, const AppendInputs& with) {
                                    return kv.Append(found, layer, with, {stream});
                                  });
}

lariat_code lariat_step_mla_append(lariat_cache* cache, std::uint64_t step, std::int32_t layer,
                                   const lariat_mla_append_inputs* inputs, void* stream) {
  return WithInputs<MlaAppendInputs>(
      cache, step, inputs, [&](KVCache& kv, const Step& found, const MlaAppendInputs& with) {
        return kv.MlaAppend(found, layer, with, {stream});
      });
}

lariat_code lariat_step_mla_expand(lariat_cache* cache, std::uint64_t step, std::int32_t layer,
                                   const lariat_mla_expand_inputs* inputs, void* stream) {
  return WithInputs<MlaExpandInputs>(
      cache, step, inputs, [&](KVCache& kv, const Step& found, const MlaExpandInputs& with) {
        return kv.MlaExpand(found, layer, with, {stream});
      });
}

lariat_code lariat_step_mla_compress(lariat_cache* cache, std::uint64_t step, std::int32_t layer,
                                     const lariat_mla_compress_inputs* inputs, void* stream) {
  return WithInputs<MlaCompressInputs>(
      cache, step, inputs, [&](KVCache& kv, const Step& found, const MlaCompressInputs& with) {
        return kv.MlaCompress(found, layer, with, {stream});
      });
}

lariat_code lariat_warmup_mla_append(lariat_cache* cache, std::int32_t layer,
                                     const lariat_mla_append_inputs* inputs, void* stream) {
  return Warm<MlaAppendInputs>(cache, layer, inputs, stream);
}

lariat_code lariat_warmup_mla_expand(lariat_cache* cache, std::int32_t layer,
                                     const lariat_mla_expand_inputs* inputs, void* stream) {
  return Warm<MlaExpandInputs>(cache, layer, inputs, stream);
}

lariat_code lariat_warmup_mla_compress(lariat_cache* cache, std::int32_t layer,
                                       const lariat_mla_compress_inputs* inputs, void* stream) {
  return Warm<MlaCompressInputs>(cache, layer, inputs, stream);
}
