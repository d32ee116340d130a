// SPDX-License-Identifier: Apache-2.0
#include "metrics.h"

#include <initializer_list>
#include <string>

namespace lariat::examples {

namespace {

using Families = std::vector<prometheus::MetricFamily>;

struct Labelled {
  const char* value;
  std::int64_t count;
};

prometheus::ClientMetric Metric(prometheus::MetricType type, double value) {
  prometheus::ClientMetric metric;
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return metric;
}

void Add(Families& families, prometheus::MetricType type, const char* name, const char* help,
         double value) {
  families.push_back({name, help, type, {Metric(type, value)}});
}

void Add(Families& families, prometheus::MetricType type, const char* name, const char* help,
         const char* label, std::initializer_list<Labelled> values) {
  prometheus::MetricFamily family{name, help, type, {}};
  for (const Labelled& one : values) {
    family.metric.push_back(Metric(type, static_cast<double>(one.count)));
    family.metric.back().label.push_back({label, one.value});
  }
  families.push_back(std::move(family));
}

struct Simple {
  const char* name;
  std::int64_t value;
  const char* help;
};

void AddAll(Families& families, prometheus::MetricType type,
            std::initializer_list<Simple> metrics) {
  for (const Simple& metric : metrics) {
    Add(families, type, metric.name, metric.help, static_cast<double>(metric.value));
  }
}

}  // namespace

Families ToPrometheus(const Stats& s) {
  constexpr auto kGauge = prometheus::MetricType::Gauge;
  constexpr auto kCounter = prometheus::MetricType::Counter;
  Families out;
  Add(out, kGauge, "lariat_blocks", "Device blocks by state; the states' sum is the pool.", "state",
      {{"free", s.free_blocks},
       {"idle", s.idle_blocks},
       {"held", s.held_blocks},
       {"reserved", s.reserved_blocks},
       {"in_transit", s.in_transit_blocks}});
  Add(out, kGauge, "lariat_host_blocks",
      "Places of the host tier by state: held ones are read by a transfer, or of suspended "
      "sequences.",
      "state",
      {{"free", s.host_blocks - s.host_used},
       {"cached", s.host_used - s.host_held},
       {"held", s.host_held}});
  AddAll(out, kGauge,
         {{"lariat_peak_used_blocks", s.peak_used_blocks,
           "Most blocks that were held, reserved and in transit at once."},
          {"lariat_indexed_blocks", s.indexed_blocks, "Blocks that a prefix may hit."},
          {"lariat_pinned_blocks", s.pinned_blocks, "Blocks that are never evicted."},
          {"lariat_sequences", s.sequences, "Open sequences."},
          {"lariat_live_steps", s.live_steps, "Steps in flight."}});
  AddAll(out, kCounter,
         {{"lariat_evicted_blocks_total", s.evicted_blocks,
           "Cached blocks that left the device to make room."},
          {"lariat_quota_evicted_blocks_total", s.quota_evicted_blocks,
           "Cached blocks freed because of a salt's quota."},
          {"lariat_expired_blocks_total", s.expired_blocks, "Cached blocks whose retention ended."},
          {"lariat_merged_blocks_total", s.merged_blocks,
           "Full blocks that were found equal to a cached one."},
          {"lariat_copied_blocks_total", s.copied_blocks, "Copies on write."},
          {"lariat_hit_tokens_total", s.hit_tokens, "Tokens that were found cached."},
          {"lariat_committed_tokens_total", s.tokens_committed, "Tokens that were kept."},
          {"lariat_offloaded_blocks_total", s.offloaded_blocks, "Blocks copied to the host tier."},
          {"lariat_onboarded_blocks_total", s.onboarded_blocks,
           "Blocks copied back from the host tier."},
          {"lariat_host_evicted_blocks_total", s.host_evicted,
           "Cached blocks dropped from the host tier to make room."},
          {"lariat_events_total", s.events, "Changes of the index that were logged."},
          {"lariat_lost_events_total", s.lost_events,
           "Of these, dropped from a full log before they were drained."}});
  return out;
}

Families ToPrometheus(const SessionStats& s, std::int64_t waiting, std::int64_t running) {
  constexpr auto kGauge = prometheus::MetricType::Gauge;
  constexpr auto kCounter = prometheus::MetricType::Counter;
  Families out;
  Add(out, kGauge, "lariat_session_requests", "Requests under way, by state.", "state",
      {{"waiting", waiting}, {"running", running}});
  Add(out, kCounter, "lariat_session_requests_total", "Requests that ended, by outcome.", "outcome",
      {{"finished", s.finished},
       {"max_length", s.refused_max_length},
       {"never_fits", s.refused_never_fits},
       {"cancelled", s.cancelled}});
  AddAll(out, kCounter,
         {{"lariat_session_preemptions_total", s.preemptions, "Requests that had to make room."},
          {"lariat_session_swaps_total", s.swaps, "Preemptions by a move to the host tier."},
          {"lariat_session_fetches_total", s.fetches,
           "Requests whose prompts were fetched from the host tier."},
          {"lariat_session_steps_total", s.steps, "Steps that were run."},
          {"lariat_session_appended_tokens_total", s.tokens_appended, "Rows that were kept."},
          {"lariat_session_recomputed_tokens_total", s.recomputed_tokens,
           "Rows computed again after a preemption."},
          {"lariat_session_hit_tokens_total", s.hit_tokens,
           "Prompt tokens not computed, as they were found cached."},
          {"lariat_session_host_hit_tokens_total", s.host_hit_tokens,
           "Of these, tokens found in the host tier."},
          {"lariat_session_lookup_tokens_total", s.lookup_tokens,
           "Prompt tokens of admitted requests."},
          {"lariat_session_output_tokens_total", s.output_tokens, "Tokens that were produced."},
          {"lariat_session_drafted_tokens_total", s.drafted_tokens, "Draft rows that were run."},
          {"lariat_session_accepted_tokens_total", s.accepted_tokens, "Draft rows that were kept."},
          {"lariat_session_forks_total", s.forks, "Sequences made of another one's rows."}});
  Add(out, kCounter, "lariat_session_busy_seconds_total",
      "Seconds of all steps, on the session's clock.", s.busy_s);
  Add(out, kCounter, "lariat_session_manager_seconds_total",
      "Wall seconds inside the cache's host calls.", s.manager_s);
  return out;
}

}  // namespace lariat::examples
