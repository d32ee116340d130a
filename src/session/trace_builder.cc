// SPDX-License-Identifier: Apache-2.0
#include "session/trace_builder.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace lariat::session {
namespace {

// Ids there are on either side of zero.
constexpr std::int64_t kIds = std::int64_t{std::numeric_limits<TokenId>::max()} + 1;

// A step of splitmix64: every bit of the seed reaches every bit of the result.
std::uint64_t Scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// What a format calls the two lengths.
struct LengthNames {
  std::string input;
  std::string output;
};
LengthNames LengthFields(TraceFormat format) {
  switch (format) {
    case TraceFormat::kAzure: return {"ContextTokens", "GeneratedTokens"};
    case TraceFormat::kBurstGpt: return {"Request tokens", "Response tokens"};
    default: return {"input_length", "output_length"};
  }
}

std::int64_t Append(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
  const std::int64_t begin = static_cast<std::int64_t>(to.size());
  to.insert(to.end(), from.begin(), from.end());
  return begin;
}

}  // namespace

TraceBuilder::TraceBuilder(std::string_view name, TraceFormat format, const TraceOptions& options)
    : options_(options) {
  trace_.name_ = name;
  trace_.format_ = format;
  switch (format) {
    case TraceFormat::kMooncake:
      trace_.prompts_ = Trace::Prompts::kHashed;
      trace_.hash_tokens_ = kMooncakeHashTokens;
      break;
    case TraceFormat::kBailian:
      trace_.prompts_ = Trace::Prompts::kHashed;
      trace_.hash_tokens_ = kBailianHashTokens;
      break;
    case TraceFormat::kAzure:
    case TraceFormat::kBurstGpt: trace_.prompts_ = Trace::Prompts::kUnique; break;
    default: trace_.prompts_ = Trace::Prompts::kGiven; break;
  }
  trace_.has_token_identity_ = trace_.prompts_ != Trace::Prompts::kUnique;
}

Status TraceBuilder::Add(const ParsedLine& parsed, std::int64_t line) {
  const std::int64_t input = parsed.request.input_length;
  const std::int64_t output = parsed.request.output_length;
  if (trace_.prompts_ == Trace::Prompts::kUnique && trace_.input_tokens_ + input > kIds) {
    return AddBad(
        {LengthFields(trace_.format_).input, "brings the trace beyond 2^31 prompt tokens"}, line);
  }
  if (trace_.output_tokens_ + output > kIds) {
    return AddBad(
        {LengthFields(trace_.format_).output, "brings the trace beyond 2^31 output tokens"}, line);
  }
  trace_.input_tokens_ += input;
  trace_.output_tokens_ += output;
  trace_.max_tokens_ = std::max(trace_.max_tokens_, input + output);

  TraceRequest& request = trace_.requests_.emplace_back(parsed.request);
  request.index = trace_.size() - 1;  // in the file's order, for now
  request.line = line;
  Trace::Source& source = trace_.sources_.emplace_back();
  source.prompt = Append(trace_.ids_, parsed.prompt_ids);
  if (!parsed.output_ids.empty()) source.output = Append(trace_.ids_, parsed.output_ids);
  if (trace_.format_ == TraceFormat::kBailian) {
    chats_.push_back({.own = parsed.chat, .parent = parsed.parent_chat});
  }
  return Status::Ok();
}

Status TraceBuilder::AddBad(const LineError& error, std::int64_t line) {
  const TraceError entry{line, error.field, error.text};
  if (options_.strict || error.fatal) return InvalidArgument(trace_.ErrorText(entry));
  ++trace_.bad_lines_;
  if (trace_.errors_.size() < Trace::kMaxErrors) trace_.errors_.push_back(entry);
  return Status::Ok();
}

Result<Trace> TraceBuilder::Finish() && {
  if (trace_.requests_.empty()) {
    if (trace_.bad_lines_ == 0) return InvalidArgument(trace_.name_ + ": holds no request");
    const TraceError& first = trace_.errors_.front();
    return InvalidArgument(
        trace_.name_ + ": no line is good; bad lines: " + NumberText(trace_.bad_lines_) +
        ", the first in line " + NumberText(first.line) + ": " + first.field + ": " + first.text);
  }
  SortByArrival();
  FindParents();
  Settle();
  return std::move(trace_);
}

void TraceBuilder::SortByArrival() {
  const auto earlier = [](const TraceRequest& a, const TraceRequest& b) {
    return a.arrival_s < b.arrival_s;
  };
  std::vector<TraceRequest>& requests = trace_.requests_;
  if (std::is_sorted(requests.begin(), requests.end(), earlier)) return;
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return earlier(requests[a], requests[b]); });
  std::vector<TraceRequest> sorted_requests;
  std::vector<Trace::Source> sorted_sources;
  sorted_requests.reserve(order.size());
  sorted_sources.reserve(order.size());
  for (const std::size_t from : order) {
    sorted_requests.push_back(std::move(requests[from]));
    sorted_sources.push_back(trace_.sources_[from]);
  }
  requests = std::move(sorted_requests);
  trace_.sources_ = std::move(sorted_sources);
}

// A turn follows the last request before it, in the trace's order, that its parent's name or its
// session has. So whatever a file says, parents come first and no turn waits for itself.
void TraceBuilder::FindParents() {
  if (!chats_.empty()) {
    std::unordered_map<std::int64_t, std::int64_t> last;
    for (std::size_t i = 0; i < trace_.requests_.size(); ++i) {
      TraceRequest& request = trace_.requests_[i];
      const Chat& chat = chats_[static_cast<std::size_t>(request.index)];
      if (const auto found = last.find(chat.parent); found != last.end()) {
        request.parent = found->second;
      }
      last[chat.own] = static_cast<std::int64_t>(i);
    }
    return;
  }
  // Tenants do not share sessions, whatever they call them.
  std::map<std::pair<std::string_view, std::string_view>, std::int64_t> last;
  for (std::size_t i = 0; i < trace_.requests_.size(); ++i) {
    TraceRequest& request = trace_.requests_[i];
    if (request.session.empty()) continue;
    const auto [place, is_first] =
        last.try_emplace({request.tenant, request.session}, static_cast<std::int64_t>(i));
    if (is_first) continue;
    request.parent = std::exchange(place->second, static_cast<std::int64_t>(i));
  }
}

void TraceBuilder::Settle() {
  // Clock times count from the file's first good row; where a later row is earlier, from that.
  const double start = std::min(trace_.requests_.front().arrival_s, 0.0);
  std::int64_t input = 0;
  std::int64_t output = 0;
  for (std::size_t i = 0; i < trace_.requests_.size(); ++i) {
    TraceRequest& request = trace_.requests_[i];
    Trace::Source& source = trace_.sources_[i];
    request.index = static_cast<std::int64_t>(i);
    request.arrival_s = (request.arrival_s - start) / options_.rate;
    if (trace_.prompts_ == Trace::Prompts::kUnique) source.prompt = input;
    source.output_base = output;
    input += request.input_length;
    output += request.output_length;
  }
  trace_.requests_.shrink_to_fit();
  trace_.sources_.shrink_to_fit();
  trace_.ids_.shrink_to_fit();
}

Trace TraceBuilder::Workload(std::string_view spec, std::int64_t input, std::int64_t output,
                             std::int64_t count, std::int64_t prefix, std::uint64_t seed) {
  Trace trace;
  trace.name_ = spec;
  trace.format_ = TraceFormat::kTokens;
  trace.prompts_ = Trace::Prompts::kPrefixed;
  trace.prefix_ = prefix;
  trace.multiplier_ = static_cast<std::uint32_t>(Scramble(seed)) | 1U;
  trace.offset_ = static_cast<std::uint32_t>(Scramble(~seed));
  trace.input_tokens_ = count * input;
  trace.output_tokens_ = count * output;
  trace.max_tokens_ = input + output;
  trace.requests_.resize(static_cast<std::size_t>(count));
  trace.sources_.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    TraceRequest& request = trace.requests_[static_cast<std::size_t>(i)];
    request.index = i;
    request.input_length = input;
    request.output_length = output;
    Trace::Source& source = trace.sources_[static_cast<std::size_t>(i)];
    source.prompt = prefix + i * (input - prefix);
    source.output_base = i * output;
  }
  return trace;
}

}  // namespace lariat::session
