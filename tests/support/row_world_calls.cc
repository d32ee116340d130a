// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "support/row_world.h"

namespace lariat::testing {

Result<SequenceId> RowWorld::Open(const std::vector<TokenId>& prompt, const std::string& salt,
                                  std::span<const Retention> retention) {
  auto id = cache_->Open(prompt, {.salt = salt, .retention = retention});
  if (id.ok()) {
    sequences_[*id].salt = salt;
    sequences_[*id].prompt = prompt;
  }
  return id;
}

Status RowWorld::Plan(const std::vector<WorldItem>& items, const StepShape& shape, Step& step) {
  std::vector<StepItem> list;
  for (const WorldItem& item : items) {
    list.push_back({item.sequence, item.num_tokens, item.num_drafts, item.positions});
  }
  auto planned = cache_->Plan(list, shape);
  if (!planned.ok()) return planned.status();
  step = *std::move(planned);
  return Status::Ok();
}

Status RowWorld::Prepare(Step step, const std::vector<WorldItem>& items, Stream stream) {
  if (Status status = cache_->Prepare(step, stream); !status.ok()) return status;
  WorldStep& live = live_.emplace_back();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const WorldItem& item = items[i];
    const StepRows rows = step.rows()[i];
    live.rows.push_back(rows);
    live.drafts[item.sequence] = item.num_drafts;
    live.left[item.sequence] = rows.count;
    WorldSequence& sequence = sequences_.at(item.sequence);
    if (rows.hit > 0) sequence.base = rows.hit;
    std::size_t next = 0;
    for (std::int64_t n = std::ssize(sequence.rows); n < rows.start + rows.count; ++n) {
      const std::int64_t row = n - rows.start;
      const std::int32_t position =
          item.positions.empty() || row < 0 ? static_cast<std::int32_t>(n) : item.positions.at(row);
      if (n < std::ssize(sequence.prompt)) {
        Feed(sequence, sequence.prompt[n], position);
      } else {
        Feed(sequence, next < item.tokens.size() ? item.tokens[next] : made_up_--, position);
        ++next;
      }
    }
    if (std::ssize(sequence.rows) != rows.start + rows.count) Wrong("a step's start");
  }
  live.step = std::move(step);
  return Status::Ok();
}

Status RowWorld::AppendLayer(int layer, const float* k, const float* v, Stream stream) {
  const Step& step = live_.back().step;
  const LayerSpec& spec = layers_.at(static_cast<std::size_t>(layer));
  if (spec.kind != LayerKind::kMla) {
    return cache_->Append(step, layer, {.dtype = DType::kFP32, .k = k, .v = v}, stream);
  }
  MlaAppendInputs inputs;
  inputs.dtype = DType::kFP32;
  inputs.kv_lora_rank = options_.latent;
  inputs.c_kv = k;
  inputs.k_pe = k + options_.latent;
  inputs.c_kv_stride = inputs.k_pe_stride = spec.k_dim;
  inputs.norm_weight = norm_weight_.data();
  return cache_->MlaAppend(step, layer, inputs, stream);
}

// Padding rows are NaN: nobody may store them.
Status RowWorld::AppendAll(Stream stream) {
  WorldStep& live = live_.back();
  Expected expected;
  expected.tokens = live.step.num_tokens();
  expected.padded_tokens = live.step.padded_tokens();
  expected.padded_sequences = live.step.padded_sequences();
  for (const StepRows& rows : live.rows) {
    const WorldSequence& sequence = sequences_.at(rows.sequence);
    expected.entries.push_back({rows.first_row, rows.start, rows.count, sequence.rows, {}});
    for (int group = 0; group < groups_; ++group) {
      const auto table = *cache_->BlockTable(rows.sequence, group);
      expected.entries.back().tables.emplace_back(table.begin(), table.end());
    }
  }
  const std::size_t tokens = static_cast<std::size_t>(expected.padded_tokens);
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const LayerSpec& spec = layers_[layer];
    const std::size_t k_row = static_cast<std::size_t>(spec.kv_heads * spec.k_dim);
    const std::size_t v_row = static_cast<std::size_t>(spec.kv_heads * spec.v_dim);
    const std::size_t count = tokens * (k_row + v_row);
    auto input = inputs_on_.Allocate(MemoryKind::kMappedHost, count * sizeof(float));
    if (!input.ok()) return input.status();
    float* k = static_cast<float*>(input->data());
    float* v = k + tokens * k_row;
    std::fill_n(k, count, std::numeric_limits<float>::quiet_NaN());
    inputs_.push_back(*std::move(input));
    for (const Expected::Entry& entry : expected.entries) {
      for (std::int64_t i = 0; i < entry.count; ++i) {
        const WorldRow& row = entry.rows[entry.start + i];
        const std::size_t t = static_cast<std::size_t>(entry.first_row + i);
        for (int head = 0; head < spec.kv_heads; ++head) {
          for (int e = 0; e < spec.k_dim; ++e) {
            k[t * k_row + static_cast<std::size_t>(head * spec.k_dim + e)] =
                static_cast<float>(Element(row, layer, head, true, e));
          }
          for (int e = 0; e < spec.v_dim; ++e) {
            v[t * v_row + static_cast<std::size_t>(head * spec.v_dim + e)] =
                static_cast<float>(Element(row, layer, head, false, e));
          }
        }
      }
    }
    if (Status status = AppendLayer(layer, k, v, stream); !status.ok()) return status;
  }
  if (enqueue_) enqueue_(stream, [this, expected] { Read(expected); });
  return Status::Ok();
}

Status RowWorld::Run(const std::vector<WorldItem>& items, Stream stream, const StepShape& shape) {
  Step step;
  if (Status status = Plan(items, shape, step); !status.ok()) return status;
  if (Status status = Prepare(std::move(step), items, stream); !status.ok()) return status;
  return AppendAll(stream);
}

Status RowWorld::Commit(Stream stream, const std::map<SequenceId, std::int64_t>& kept,
                        std::int64_t given) {
  WorldStep& live = live_.front();
  std::vector<StepCommit> commits;
  std::map<SequenceId, std::int64_t> ends;
  for (const StepRows& rows : live.rows) {
    const auto found = sequences_.find(rows.sequence);
    if (found == sequences_.end()) continue;
    WorldSequence& sequence = found->second;
    const std::int64_t left = live.left.at(rows.sequence);
    const auto asked = kept.find(rows.sequence);
    const std::int64_t keep = asked == kept.end() ? left : std::min(asked->second, left);
    ends[rows.sequence] = left == 0 ? -1 : rows.start + keep;
    if (left == 0) continue;
    const std::int64_t from = std::max<std::int64_t>(rows.start, std::ssize(sequence.prompt));
    const std::int64_t past = std::max<std::int64_t>(0, rows.start + keep - from);
    std::int64_t tell = std::min(past, given);
    if (cache_->GetExtent(rows.sequence)->known < from) tell = 0;
    const std::span<const TokenId> fed = sequence.tokens;
    commits.push_back(
        {rows.sequence, keep,
         tell == 0 ? fed.first(0)
                   : fed.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(tell))});
  }
  if (Status status = cache_->Commit(live.step, commits, stream); !status.ok()) return status;
  for (const auto& [id, end] : ends) {
    WorldSequence& sequence = sequences_.at(id);
    if (end >= 0) sequence.base = end;
    sequence.settled = sequence.base;
    const bool later =
        std::any_of(live_.begin() + 1, live_.end(),
                    [&, id = id](const WorldStep& step) { return step.left.count(id) > 0; });
    if (end >= 0 && !later) {  // rejected drafts
      sequence.tokens.resize(static_cast<std::size_t>(end));
      sequence.rows.resize(static_cast<std::size_t>(end));
    }
  }
  live_.pop_front();
  return Status::Ok();
}

Status RowWorld::DiscardLast(Stream stream) {
  WorldStep& live = live_.back();
  if (Status status = cache_->Discard(live.step, stream); !status.ok()) return status;
  for (const StepRows& rows : live.rows) {
    const auto found = sequences_.find(rows.sequence);
    if (found == sequences_.end()) continue;
    const bool first = cache_->Match(rows.sequence).ok();  // it is as new again
    if (first) found->second.base = 0;
    const std::size_t end = first ? 0 : static_cast<std::size_t>(rows.start);
    if (found->second.rows.size() > end) {
      found->second.rows.resize(end);
      found->second.tokens.resize(end);
    }
  }
  live_.pop_back();
  return Status::Ok();
}

Status RowWorld::Close(SequenceId id) {
  if (Status status = cache_->Close(id); !status.ok()) return status;
  sequences_.erase(id);
  return Status::Ok();
}

Result<TransferId> RowWorld::Start(SequenceId id, const Result<TransferId>& started, bool up) {
  if (!started.ok()) return started;
  const bool in_transit = up && *started != TransferId::kNone;
  sequences_.at(id).away = !up || in_transit;
  if (in_transit) transfers_[*started] = id;
  return started;
}

Result<TransferReport> RowWorld::Accept(TransferId id) {
  auto report = cache_->Accept(id);
  if (!report.ok()) return report;
  while (!transfers_.empty() && transfers_.begin()->first <= id) {
    const auto found = sequences_.find(transfers_.begin()->second);
    if (found != sequences_.end()) found->second.away = false;
    transfers_.erase(transfers_.begin());
  }
  return report;
}

Status RowWorld::Truncate(SequenceId id, std::int64_t length) {
  if (Status status = cache_->Truncate(id, length); !status.ok()) return status;
  WorldSequence& sequence = sequences_.at(id);
  if (length >= std::ssize(sequence.rows)) return Status::Ok();
  sequence.rows.resize(static_cast<std::size_t>(length));
  sequence.tokens.resize(static_cast<std::size_t>(length));
  sequence.settled = std::min(sequence.settled, length);
  sequence.base = std::min(sequence.base, length);
  for (WorldStep& live : live_) {
    for (const StepRows& rows : live.rows) {
      if (rows.sequence != id) continue;
      std::int64_t& left = live.left.at(id);
      left = std::clamp<std::int64_t>(length - rows.start, 0, left);
    }
  }
  return Status::Ok();
}

Result<SequenceId> RowWorld::Fork(SequenceId id, std::int64_t length) {
  auto child = cache_->Fork(id, length);
  if (!child.ok()) return child;
  WorldSequence copy = sequences_.at(id);
  const std::size_t end = static_cast<std::size_t>(length < 0 ? copy.settled : length);
  copy.rows.resize(end);
  copy.tokens.resize(end);
  copy.settled = copy.base = static_cast<std::int64_t>(end);
  sequences_[*child] = copy;
  return child;
}

Status RowWorld::TellAll(SequenceId id) {
  const WorldSequence& sequence = sequences_.at(id);
  const std::int64_t known = cache_->GetExtent(id)->known;
  if (known >= sequence.settled) return Status::Ok();
  return cache_->SetTokens(id, std::span(sequence.tokens)
                                   .subspan(static_cast<std::size_t>(known),
                                            static_cast<std::size_t>(sequence.settled - known)));
}

}  // namespace lariat::testing
