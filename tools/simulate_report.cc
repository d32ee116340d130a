// SPDX-License-Identifier: Apache-2.0
#include "simulate_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

namespace lariat::tools {
namespace {

using Json = nlohmann::ordered_json;

double HitRate(const SessionStats& stats) {
  if (stats.lookup_tokens == 0) return 0;
  return static_cast<double>(stats.hit_tokens) / static_cast<double>(stats.lookup_tokens);
}

Json LatencyJson(const std::optional<LatencySummary>& latency) {
  if (!latency) return nullptr;
  return {{"mean", latency->mean},
          {"p50", latency->p50},
          {"p90", latency->p90},
          {"p99", latency->p99},
          {"max", latency->max}};
}

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string_view OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kFinished: return "finished";
    case Outcome::kMaxLength: return "max_length";
    case Outcome::kNeverFits: return "never_fits";
    case Outcome::kCancelled: return "cancelled";
  }
  return "";
}

// 12031 as "12,031".
std::string Count(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Bytes(double bytes) {
  for (const char* unit : {"B", "KiB", "MiB", "GiB"}) {
    if (bytes < 1024) return fmt::format("{:.4g} {}", bytes, unit);
    bytes /= 1024;
  }
  return fmt::format("{:.4g} TiB", bytes);
}

void AddLatency(std::string& text, const char* name, const std::optional<LatencySummary>& l) {
  if (!l) return;
  fmt::format_to(std::back_inserter(text), "  {:<6}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}\n",
                 name, l->mean, l->p50, l->p90, l->p99, l->max);
}

void AddLoad(std::string& text, const SimulationResult& result) {
  auto out = std::back_inserter(text);
  if (!result.saturated) return;
  if (result.offered) {
    fmt::format_to(out,
                   "SATURATED   requests need {:.2f} s of device time per second of arrivals: the "
                   "queue grows\n            for as long as they come, and the latencies below say "
                   "how long the trace is.\n",
                   *result.offered);
  } else {
    fmt::format_to(out,
                   "SATURATED   all requests arrive at once: the latencies below say how many they "
                   "are.\n");
  }
}

}  // namespace

std::string SimulationJson(const Trace& trace, const SimulatorConfig& config,
                           const SimulationResult& result) {
  const SessionStats& s = result.session;
  Json doc;
  doc["backend"] = BackendName(result.backend);
  doc["model"] = config.model.name;
  doc["device"] = config.device.name;
  doc["trace"] = {{"requests", trace.size()},
                  {"input_tokens", trace.input_tokens()},
                  {"output_tokens", trace.output_tokens()},
                  {"bad_lines", trace.bad_lines()}};
  doc["served"] = {
      {"finished", s.finished},
      {"refused", s.refused_max_length + s.refused_never_fits},
      {"refused_by", {{"max_length", s.refused_max_length}, {"never_fits", s.refused_never_fits}}},
      {"preemptions", s.preemptions}};
  doc["prefix"] = nullptr;
  if (result.has_prefix) {
    doc["prefix"] = {
        {"hit_tokens", s.hit_tokens}, {"lookup_tokens", s.lookup_tokens}, {"hit_rate", HitRate(s)}};
    if (result.cache.host_blocks > 0) {
      doc["prefix"]["device_hit_tokens"] = s.hit_tokens - s.host_hit_tokens;
      doc["prefix"]["host_hit_tokens"] = s.host_hit_tokens;
    }
  }
  doc["speculation"] = nullptr;
  if (config.draft_tokens > 0) {
    doc["speculation"] = {{"drafted", s.drafted_tokens}, {"accepted", s.accepted_tokens}};
  }
  doc["beams"] = nullptr;
  if (config.beams > 1) {
    doc["beams"] = {
        {"width", config.beams}, {"forks", s.forks}, {"copied_blocks", result.cache.copied_blocks}};
  }
  doc["blocks"] = {
      {"size", config.block_size},
      {"total", config.memory.unlimited ? Json(nullptr) : Json(result.cache.total_blocks)},
      {"peak_used", result.cache.peak_used_blocks},
      {"evicted", result.cache.evicted_blocks},
      {"bytes_each", result.bytes_per_block}};
  doc["host"] = nullptr;
  if (result.cache.host_blocks > 0) {
    doc["host"] = {{"blocks", result.cache.host_blocks},
                   {"used", result.cache.host_used},
                   {"evicted", result.cache.host_evicted},
                   {"fetches", s.fetches},
                   {"swaps", s.swaps}};
  }
  doc["steps"] = s.steps;
  doc["tokens_appended"] = s.tokens_appended;
  doc["recomputed_tokens"] = s.recomputed_tokens;
  doc["bytes"] = {{"appended", s.tokens_appended * result.bytes_per_token},
                  {"offloaded", result.cache.offloaded_blocks * result.bytes_per_block},
                  {"onboarded", result.cache.onboarded_blocks * result.bytes_per_block}};
  doc["time"] = {{"wall_s", result.wall_s},
                 {"manager_s", s.manager_s},
                 {"device_s", OrNull(result.device_s)},
                 {"virtual_s", result.virtual_s}};
  doc["load"] = {{"offered", OrNull(result.offered)},
                 {"busy_fraction", result.busy_fraction},
                 {"saturated", result.saturated}};
  doc["throughput"] = {{"output_tok_s", result.output_tok_s}, {"req_s", result.req_s}};
  doc["latency_ms"] = {{"queue", LatencyJson(result.queue)},
                       {"ttft", LatencyJson(result.ttft)},
                       {"tpot", LatencyJson(result.tpot)},
                       {"e2e", LatencyJson(result.e2e)}};
  doc["check"] = nullptr;
  if (result.check) {
    doc["check"] = {{"sequences", result.check->sequences},
                    {"mismatches", result.check->mismatches}};
  }
  return doc.dump(2) + "\n";
}

std::string SimulationText(const Trace& trace, const SimulatorConfig& config,
                           const SimulationResult& result) {
  const SessionStats& s = result.session;
  std::string text;
  auto out = std::back_inserter(text);
  const std::int64_t refused = s.refused_max_length + s.refused_never_fits;
  fmt::format_to(out, "trace       {}: {} requests, {} prompt and {} output tokens, {} bad lines\n",
                 trace.name(), Count(trace.size()), Count(trace.input_tokens()),
                 Count(trace.output_tokens()), Count(trace.bad_lines()));
  fmt::format_to(out, "ran on      backend {}", BackendName(result.backend));
  if (result.backend_name != BackendName(result.backend)) {
    fmt::format_to(out, " ({})", result.backend_name);
  }
  fmt::format_to(out, ", as model {} on device {}, seed {}\n", config.model.name,
                 config.device.name, config.seed);
  fmt::format_to(out, "served      {} finished, {} refused", Count(s.finished), Count(refused));
  if (refused > 0) {
    fmt::format_to(out, " (max_length {}, never_fits {})", Count(s.refused_max_length),
                   Count(s.refused_never_fits));
  }
  fmt::format_to(out, ", {} preemptions, {} steps\n", Count(s.preemptions), Count(s.steps));
  if (result.has_prefix) {
    fmt::format_to(out, "prefix      {} of {} prompt tokens found cached ({:.2f} %)\n",
                   Count(s.hit_tokens), Count(s.lookup_tokens), 100 * HitRate(s));
  } else {
    fmt::format_to(out, "prefix      unknown: the trace does not say which tokens are equal\n");
  }
  if (config.draft_tokens > 0) {
    fmt::format_to(out, "drafts      {} of {} accepted\n", Count(s.accepted_tokens),
                   Count(s.drafted_tokens));
  }
  if (config.beams > 1) {
    fmt::format_to(out, "beams       {} of each request: {} forks, {} blocks copied\n",
                   config.beams, Count(s.forks), Count(result.cache.copied_blocks));
  }
  fmt::format_to(
      out, "appended    {} tokens ({} computed again), {}\n", Count(s.tokens_appended),
      Count(s.recomputed_tokens),
      Bytes(static_cast<double>(s.tokens_appended) * static_cast<double>(result.bytes_per_token)));
  fmt::format_to(out, "blocks      of {} tokens, {} each: peak {} used of {}, {} evicted\n",
                 config.block_size, Bytes(static_cast<double>(result.bytes_per_block)),
                 Count(result.cache.peak_used_blocks),
                 config.memory.unlimited ? "unlimited" : Count(result.cache.total_blocks),
                 Count(result.cache.evicted_blocks));
  if (result.cache.host_blocks > 0) {
    const auto bytes = [&](std::int64_t blocks) {
      return Bytes(static_cast<double>(blocks) * static_cast<double>(result.bytes_per_block));
    };
    fmt::format_to(out,
                   "host tier   {} blocks, {} used, {} evicted: {} prompt tokens found there by {} "
                   "fetches, {} swaps\n            {} down, {} up\n",
                   Count(result.cache.host_blocks), Count(result.cache.host_used),
                   Count(result.cache.host_evicted), Count(s.host_hit_tokens), Count(s.fetches),
                   Count(s.swaps), bytes(result.cache.offloaded_blocks),
                   bytes(result.cache.onboarded_blocks));
  }
  fmt::format_to(out,
                 "simulated   {:.3f} s, busy {:.1f} %: {:.1f} output tokens/s, {:.3f} requests/s\n",
                 result.virtual_s, 100 * result.busy_fraction, result.output_tok_s, result.req_s);
  fmt::format_to(out, "took        {:.3f} s, of which {:.3f} s in the cache's host calls",
                 result.wall_s, s.manager_s);
  if (result.device_s) fmt::format_to(out, ", {:.3f} s in appends and copies", *result.device_s);
  text += '\n';
  if (result.check) {
    const char* verdict = "ok";
    if (result.check->sequences == 0) verdict = "nothing compared";
    if (result.check->mismatches > 0) verdict = "FAILED";
    fmt::format_to(out, "check       {} sequences, {} mismatches: {}\n",
                   Count(result.check->sequences), Count(result.check->mismatches), verdict);
  }
  AddLoad(text, result);
  if (result.e2e) {
    fmt::format_to(out, "latency ms{:>10}{:>12}{:>12}{:>12}{:>12}\n", "mean", "p50", "p90", "p99",
                   "max");
    AddLatency(text, "queue", result.queue);
    AddLatency(text, "ttft", result.ttft);
    AddLatency(text, "tpot", result.tpot);
    AddLatency(text, "e2e", result.e2e);
  }
  return text;
}

std::string RequestsCsv(const Trace& trace, const SimulationResult& result) {
  // In the trace's order, whatever the order of their ends.
  std::vector<const RequestResult*> rows;
  rows.reserve(result.requests.size());
  for (const RequestResult& request : result.requests) rows.push_back(&request);
  std::sort(rows.begin(), rows.end(),
            [](const RequestResult* a, const RequestResult* b) { return a->tag < b->tag; });
  std::string text =
      "request,line,outcome,input_tokens,output_tokens,hit_tokens,host_hit_tokens,"
      "recomputed_tokens,preemptions,"
      "arrival_s,queue_ms,ttft_ms,tpot_ms,e2e_ms\n";
  for (const RequestResult* r : rows) {
    const TraceRequest& asked = trace.requests()[r->tag];
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{},{},{},{}", r->tag, asked.line,
                   OutcomeName(r->outcome), r->prompt_tokens, r->output_tokens, r->hit_tokens,
                   r->host_hit_tokens, r->recomputed_tokens, r->preemptions, r->arrival_s);
    if (r->outcome == Outcome::kFinished) {
      const double decode_s = r->end_s - r->first_token_s;
      fmt::format_to(std::back_inserter(text), ",{},{},", 1e3 * (r->admitted_s - r->arrival_s),
                     1e3 * (r->first_token_s - r->arrival_s));
      if (r->output_tokens > 1) {
        fmt::format_to(std::back_inserter(text), "{}",
                       1e3 * decode_s / static_cast<double>(r->output_tokens - 1));
      }
      fmt::format_to(std::back_inserter(text), ",{}\n", 1e3 * (r->end_s - r->arrival_s));
    } else {
      text += ",,,,\n";
    }
  }
  return text;
}

}  // namespace lariat::tools
