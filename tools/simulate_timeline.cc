// SPDX-License-Identifier: Apache-2.0
#include "simulate_timeline.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <filesystem>
#include <system_error>

namespace lariat::tools {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;

// Tracks of the one process.
enum Track : int { kSteps = 1, kToDevice = 2, kToHost = 3 };

// Whole nanoseconds, so that what ends where something else begins does so in the file too.
std::int64_t Nanoseconds(double seconds) {
  return static_cast<std::int64_t>(std::llround(seconds * 1e9));
}

// The format counts in microseconds.
std::string Micros(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

const char* NameOf(RequestPhase phase) {
  switch (phase) {
    case RequestPhase::kQueued: return "queued";
    case RequestPhase::kPrefill: return "prefill";
    case RequestPhase::kDecode: return "decode";
    case RequestPhase::kPreempted: return "preempted";
  }
  return "";
}

const char* NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kFinished: return "finished";
    case Outcome::kMaxLength: return "max_length";
    case Outcome::kNeverFits: return "never_fits";
    case Outcome::kCancelled: return "cancelled";
  }
  return "";
}

// A span of a track. arguments: members of an object
std::string Span(Track track, const char* name, std::int64_t begin_ns, std::int64_t end_ns,
                 const std::string& arguments) {
  return fmt::format(R"({{"ph":"X","pid":1,"tid":{},"name":"{}","ts":{},"dur":{},"args":{{{}}}}})",
                     static_cast<int>(track), name, Micros(begin_ns), Micros(end_ns - begin_ns),
                     arguments);
}

std::string Counter(const char* name, std::int64_t ns, const std::string& values) {
  return fmt::format(R"({{"ph":"C","pid":1,"name":"{}","ts":{},"args":{{{}}}}})", name, Micros(ns),
                     values);
}

std::string TrackName(Track track, const char* name) {
  return fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
                     static_cast<int>(track), name);
}

}  // namespace

Status Timeline::Open(const std::string& path) {
  path_ = path;
  std::error_code ignored;
  fresh_ = path != "-" && !std::filesystem::exists(path, ignored);
  // What is there stays until there is something to write.
  file_ = path == "-" ? stdout : std::fopen(path.c_str(), "ab");
  if (file_ == nullptr) {
    return InvalidArgument("--trace-out = " + path + ": cannot be written");
  }
  buffer_.reserve(kBufferBytes + 1024);
  buffer_ = R"({"displayTimeUnit":"ms","traceEvents":[)";
  Write(R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"lariat simulate"}})");
  Write(TrackName(kSteps, "steps"));
  Write(TrackName(kToDevice, "transfers to the device"));
  Write(TrackName(kToHost, "transfers to the host"));
  told_ = false;
  return Status::Ok();
}

Status Timeline::Close() {
  if (file_ != nullptr) {
    buffer_ += "\n]}\n";
    Flush();
  }
  if (file_ != nullptr) {
    failed_ = std::fflush(file_) != 0 || failed_;
    failed_ = (file_ != stdout && std::fclose(file_) != 0) || failed_;
    file_ = nullptr;
  }
  if (!failed_) return Status::Ok();
  return InvalidArgument("--trace-out = " + path_ + ": not all of it could be written");
}

void Timeline::Drop() {
  if (file_ == nullptr || told_) return;
  if (file_ != stdout) std::fclose(file_);
  file_ = nullptr;
  if (fresh_) std::remove(path_.c_str());
}

void Timeline::Flush() {
  if (!begun_ && file_ != stdout) {
    std::fclose(file_);
    file_ = std::fopen(path_.c_str(), "wb");
  }
  begun_ = true;
  failed_ = file_ == nullptr ||
            std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size() || failed_;
  buffer_.clear();
}

void Timeline::Write(const std::string& event) {
  if (file_ == nullptr) return;
  buffer_ += first_ ? "\n" : ",\n";
  first_ = false;
  told_ = true;
  buffer_ += event;
  if (buffer_.size() >= kBufferBytes) Flush();
}

// The begin, the end or an instant of what a request is in: 'b', 'e' or 'n'.
void Timeline::WriteMark(char phase, std::int64_t request, const char* name, std::int64_t ns,
                         const std::string& arguments) {
  Write(fmt::format(
      R"({{"ph":"{}","pid":1,"tid":1,"cat":"request","id":{},"name":"{}","ts":{},"args":{{{}}}}})",
      phase, request, name, Micros(ns), arguments));
}

void Timeline::OnStep(const SimulatedStep& step, const Stats& cache, const SessionStats& session) {
  const std::int64_t end = Nanoseconds(step.end_s);
  Write(Span(kSteps, "step", Nanoseconds(step.begin_s), end,
             fmt::format(R"("step":{},"tokens":{},"sequences":{},"drafts":{},"hit_tokens":{})",
                         step.number, step.tokens, step.sequences, step.drafts, step.hit_tokens)));
  Write(Counter("blocks", end,
                fmt::format(R"("held":{},"idle":{},"free":{})",
                            cache.held_blocks + cache.reserved_blocks + cache.in_transit_blocks,
                            cache.idle_blocks, cache.free_blocks)));
  const std::int64_t looked_up = session.lookup_tokens;
  const double rate =
      looked_up == 0 ? 0 : static_cast<double>(session.hit_tokens) / static_cast<double>(looked_up);
  Write(Counter("hit rate", end, fmt::format(R"("percent":{:.6f})", 100 * rate)));
}

void Timeline::OnPhase(std::int64_t request, RequestPhase phase, double now_s) {
  const std::int64_t now = Nanoseconds(now_s);
  const auto [known, is_new] = phases_.try_emplace(request, phase);
  if (is_new) {
    WriteMark('b', request, "request", now, fmt::format(R"("request":{})", request));
  } else {
    WriteMark('e', request, NameOf(known->second), now);
    known->second = phase;
  }
  WriteMark('b', request, NameOf(phase), now);
}

void Timeline::OnTransfer(const TransferWork& work, double begin_s, double end_s) {
  Write(Span(work.to_device ? kToDevice : kToHost, work.to_device ? "to device" : "to host",
             Nanoseconds(begin_s), Nanoseconds(end_s),
             fmt::format(R"("blocks":{},"bytes":{})", work.blocks, work.bytes)));
}

void Timeline::OnDone(const RequestResult& result) {
  const auto request = static_cast<std::int64_t>(result.tag);
  const std::string arguments =
      fmt::format(R"("outcome":"{}","input_tokens":{},"output_tokens":{},"hit_tokens":{},)"
                  R"("recomputed_tokens":{},"preemptions":{})",
                  NameOf(result.outcome), result.prompt_tokens, result.output_tokens,
                  result.hit_tokens, result.recomputed_tokens, result.preemptions);
  const auto known = phases_.find(request);
  if (known == phases_.end()) {
    WriteMark('n', request, "refused", Nanoseconds(result.arrival_s), arguments);
    return;
  }
  const std::int64_t end = Nanoseconds(result.end_s);
  WriteMark('e', request, NameOf(known->second), end);
  WriteMark('e', request, "request", end, arguments);
  phases_.erase(known);
}

}  // namespace lariat::tools
