// SPDX-License-Identifier: Apache-2.0
#include "session/simulated_model.h"

#include <algorithm>

namespace lariat::session {

SimulatedModel::SimulatedModel(const Trace& trace, const SimulatorConfig& config,
                               const OutputScript& script, const ModelCost& cost,
                               SimulatedData* data)
    : trace_(trace),
      script_(script),
      cost_(cost),
      device_(config.device),
      prefill_chunk_(config.prefill_chunk),
      num_drafts_(config.draft_tokens),
      data_(data),
      generated_(static_cast<std::size_t>(trace.size())) {}

Status SimulatedModel::Run(const ExecutorStep& step, ExecutorOutput& output) {
  if (data_ != nullptr) {
    const Status appended = data_->AppendStep(step);
    if (!appended.ok()) return appended;
  }
  StepWork work(cost_);
  last_step_ = {.number = last_step_.number + 1,
                .begin_s = step.now_s,
                .tokens = step.step.num_tokens(),
                .sequences = std::ssize(step.items)};
  spare_.resize(step.items.size() * SparePerItem());
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const ExecutorItem& item = step.items[i];
    work.Add(item.count, item.start + item.count, item.samples);
    work.logit_rows += item.drafts;  // each draft is compared with what its row puts out
    last_step_.drafts += item.drafts;
    if (!item.samples) continue;
    Sample(item, i, output);
  }
  if (data_ != nullptr) data_->EndStep(step, output);
  output.seconds = StepSeconds(cost_, device_, work);
  last_step_.end_s = step.now_s + output.seconds;
  return Status::Ok();
}

double SimulatedModel::TransferSeconds(const TransferWork& work) {
  const Figure& rate =
      work.to_device ? device_.host_to_device_bytes_per_s : device_.device_to_host_bytes_per_s;
  return static_cast<double>(work.bytes) / rate.value;
}

bool SimulatedModel::PrefersSwap(std::int64_t tokens, const TransferWork& work) {
  TransferWork back = work;
  back.to_device = true;
  const double swap = TransferSeconds(work) + TransferSeconds(back);
  double again = 0;
  for (std::int64_t end = 0; end < tokens && again < swap;) {
    const std::int64_t rows = std::min(prefill_chunk_, tokens - end);
    end += rows;
    StepWork chunk(cost_);
    chunk.Add(rows, end, /*samples=*/end == tokens);
    again += StepSeconds(cost_, device_, chunk);
  }
  return swap < again;
}

// Drafts of one item, or the first tokens of its forks.
std::size_t SimulatedModel::SparePerItem() const {
  return static_cast<std::size_t>(std::max(num_drafts_, script_.beams() - 1));
}

void SimulatedModel::Sample(const ExecutorItem& item, std::size_t i, ExecutorOutput& output) {
  const auto index = static_cast<std::int64_t>(item.tag);
  const TraceRequest& request = trace_.requests()[item.tag];
  const std::int64_t certain = item.count - item.drafts;
  std::int64_t position = item.start + certain - request.input_length;
  for (std::int64_t row = certain; row < item.count; ++row, ++position) {
    if (item.tokens[static_cast<std::size_t>(row)] != script_.Token(index, position, 0)) break;
    output.accepted[i] += 1;
  }
  output.next[i] = script_.Token(index, position, item.beam);
  output.parents[i] = script_.Parent(index, position, item.beam);
  generated_[item.tag] = position + 1;

  const auto spare = std::span(spare_).subspan(i * SparePerItem(), SparePerItem());
  std::size_t count = 0;
  for (int fork = 1; fork <= item.forks; ++fork) {
    spare[count++] = script_.Token(index, position, fork);
  }
  output.first[i] = spare.first(count);
  if (num_drafts_ == 0) return;
  // The last token is never fed in, so a draft of it is of no use.
  const std::int64_t end = std::min(position + 1 + num_drafts_, request.output_length - 1);
  for (std::int64_t next = position + 1; next < end; ++next) {
    spare[count++] = script_.Draft(index, next);
  }
  output.drafts[i] = spare.first(count);
}

}  // namespace lariat::session
