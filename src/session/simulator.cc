// SPDX-License-Identifier: Apache-2.0
#include "lariat/simulator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "lariat/device.h"
#include "session/simulated_model.h"
#include "session/simulator_arrivals.h"
#include "session/simulator_data.h"
#include "session/simulator_script.h"

namespace lariat {
namespace {

using session::Arrivals;
using session::OutputScript;
using session::SimulatedData;
using session::SimulatedModel;

// Keeps the results, and has sequences checked before they are closed.
class Recorder final : public SessionObserver {
 public:
  // checked: null where nothing is to be compared. observer: null where nobody watches.
  Recorder(std::int64_t requests, const SimulatedModel& model, SimulatedData* checked,
           SimulationObserver* observer)
      : model_(model), checked_(checked), observer_(observer) {
    results_.reserve(static_cast<std::size_t>(requests));
  }

  Status OnSequenceEnd(const SequenceEnd& end) override {
    if (checked_ == nullptr) return Status::Ok();
    // A beam that nobody goes on from is what it was before the step's output.
    const bool dropped = end.reason == SequenceEndReason::kDropped;
    return checked_->CheckSequence(end, model_.generated(end.tag) - (dropped ? 1 : 0));
  }
  void OnPhase(RequestId, std::uint64_t tag, RequestPhase phase, double now_s) override {
    if (observer_ != nullptr) observer_->OnPhase(static_cast<std::int64_t>(tag), phase, now_s);
  }
  void OnTransfer(const TransferWork& work, double begin_s, double end_s) override {
    if (observer_ != nullptr) observer_->OnTransfer(work, begin_s, end_s);
  }
  void OnDone(const RequestResult& result) override {
    results_.push_back(result);
    if (observer_ != nullptr) observer_->OnDone(result);
  }

  const std::vector<RequestResult>& results() const { return results_; }
  std::vector<RequestResult> TakeResults() { return std::move(results_); }

 private:
  const SimulatedModel& model_;
  SimulatedData* const checked_;
  SimulationObserver* const observer_;
  std::vector<RequestResult> results_;
};

Status CheckConfig(const SimulatorConfig& config) {
  if (config.concurrency < 0) {
    return InvalidArgument("concurrency = " + std::to_string(config.concurrency) +
                           "; allowed: at least 1, or 0 for arrivals by the trace's clock");
  }
  if (config.max_length < 0) {
    return InvalidArgument("max_length = " + std::to_string(config.max_length) +
                           "; allowed: at least 1, or 0 for the trace's longest request");
  }
  if (config.fault != InjectedFault::kNone && !config.check) {
    return InvalidArgument("a fault is injected to be seen by the check, which is not asked for");
  }
  if (config.fault_step < 1) {
    return InvalidArgument("the fault's step = " + std::to_string(config.fault_step) +
                           "; allowed: at least 1");
  }
  if (config.draft_tokens < 0 || config.draft_tokens > 64) {
    return InvalidArgument("draft_tokens = " + std::to_string(config.draft_tokens) +
                           "; allowed: 1 to 64, or 0 for no speculation");
  }
  if (!(config.acceptance >= 0 && config.acceptance <= 1)) {
    return InvalidArgument("acceptance = " + std::to_string(config.acceptance) +
                           "; allowed: 0 to 1");
  }
  const std::int64_t most_beams =
      std::min<std::int64_t>({64, config.max_batch, config.prefill_chunk});
  if (config.beams != 1 && (config.beams < 1 || config.beams > most_beams)) {
    return InvalidArgument("beams = " + std::to_string(config.beams) + "; allowed: 1 to " +
                           std::to_string(most_beams) +
                           ", the least of 64, max_batch and prefill_chunk");
  }
  const bool has_tier = config.host.num_blocks > 0 || config.host.bytes > 0;
  if (config.preempt == Preempt::kSwap && !has_tier) {
    return InvalidArgument("preempt by swap needs a host tier, and host names none");
  }
  if (config.late_copies && !has_tier) {
    return InvalidArgument("late_copies are copies of a host tier, and host names none");
  }
  if (config.beams > 1 && config.draft_tokens > 0) {
    return InvalidArgument("beams and draft_tokens are both given; allowed: one of them");
  }
  return Status::Ok();
}

CacheConfig MakeCacheConfig(const Trace& trace, const SimulatorConfig& config) {
  CacheConfig cache;
  cache.layers = config.model.layers;
  cache.ropes = config.model.ropes;
  cache.dtype = config.dtype;
  cache.backend = config.backend;
  cache.memory = config.memory;
  cache.block_size = config.block_size;
  cache.layout = config.layout;
  cache.order = config.order;
  // Without token identity no two prompts are alike, and looking for hits would only cost time.
  cache.reuse = trace.has_token_identity() ? config.reuse : Reuse::kNone;
  cache.host = config.host;
  cache.eviction = config.eviction;
  cache.max_steps_in_flight = 1;
  cache.max_sequences = config.max_batch + 1;
  const std::int64_t longest = trace.max_tokens();
  cache.max_tokens_per_sequence =
      config.max_length == 0 ? longest : std::min(config.max_length, longest);
  cache.max_tokens_per_step = config.prefill_chunk;
  return cache;
}

Result<KVCache> MakeCache(const Trace& trace, const SimulatorConfig& config) {
  const CacheConfig cache = MakeCacheConfig(trace, config);
  if (!config.late_copies) return KVCache::Create(cache);
  Result<Device> device = Device::CreateDeferred(config.backend, config.seed);
  if (!device.ok()) return device.status();
  return KVCache::Create(cache, *std::move(device));
}

Request MakeRequest(const Trace& trace, const SimulatorConfig& config, std::int64_t index,
                    double arrival_s) {
  const TraceRequest& request = trace.requests()[static_cast<std::size_t>(index)];
  Request made;
  made.prompt_length = request.input_length;
  made.write_prompt = [&trace, index](std::vector<TokenId>& prompt) {
    trace.PromptTokens(index, prompt);
  };
  made.max_new_tokens = request.output_length;
  made.arrival_s = arrival_s;
  made.tag = static_cast<std::uint64_t>(index);
  made.salt = request.tenant;
  if (config.eviction == EvictionPolicy::kPriority) {
    made.priority = static_cast<int>(std::clamp<std::int64_t>(
        std::int64_t{kDefaultPriority} + request.priority, 0, kMaxPriority));
  }
  made.beams = config.beams;
  return made;
}

// Sends the trace's requests and runs until all have ended. The clock starts at the first arrival.
Status Replay(const Trace& trace, const SimulatorConfig& config, Session& session,
              const KVCache& cache, const SimulatedModel& model, const Recorder& recorder) {
  const bool closed = config.concurrency > 0;
  Arrivals arrivals(trace, closed ? Arrivals::Order::kTrace : Arrivals::Order::kTime,
                    config.follow_turns);
  std::size_t told = 0;  // of the recorder's results
  SimulatedStep step;    // the last one that the observer was told of
  std::int64_t hits = 0;
  const auto tell_ends = [&] {
    for (; told < recorder.results().size(); ++told) {
      const RequestResult& result = recorder.results()[told];
      const bool refused =
          result.outcome == Outcome::kMaxLength || result.outcome == Outcome::kNeverFits;
      arrivals.Ended(static_cast<std::int64_t>(result.tag),
                     refused ? result.arrival_s : result.end_s);
    }
  };
  const auto is_due = [&] {
    if (!arrivals.ready()) return false;
    if (closed) return session.waiting() + session.running() < config.concurrency;
    return arrivals.next().time_s <= session.now();
  };
  while (true) {
    while (is_due()) {
      const Arrivals::Arrival next = arrivals.Take();
      const double when = closed ? session.now() : next.time_s;
      const Result<RequestId> added = session.Add(MakeRequest(trace, config, next.index, when));
      if (!added.ok()) return added.status();
      tell_ends();
    }
    if (session.idle()) {
      // Parents come before their turns, so as long as some are left one of them is ready.
      if (!arrivals.ready()) return Status::Ok();
      session.AdvanceTo(arrivals.next().time_s);
      continue;
    }
    const Result<bool> ran = session.RunStep();
    if (!ran.ok()) return ran.status();
    if (config.observer != nullptr && model.last_step().number > step.number) {
      const std::int64_t before = hits;
      hits = session.stats().hit_tokens;
      step = model.last_step();
      step.hit_tokens = hits - before;
      config.observer->OnStep(step, cache.GetStats(), session.stats());
    }
    tell_ends();
    if (config.progress) config.progress(std::ssize(recorder.results()), trace.size());
  }
}

// Percentiles are nearest-rank: the smallest value that so many of all do not exceed.
std::optional<LatencySummary> Summarise(std::vector<double> seconds) {
  if (seconds.empty()) return std::nullopt;
  std::sort(seconds.begin(), seconds.end());
  double sum = 0;
  for (const double value : seconds) sum += value;
  const auto count = static_cast<double>(seconds.size());
  const auto rank = [&](std::size_t percent) {
    return 1e3 * seconds[(percent * seconds.size() + 99) / 100 - 1];
  };
  return LatencySummary{.mean = 1e3 * sum / count,
                        .p50 = rank(50),
                        .p90 = rank(90),
                        .p99 = rank(99),
                        .max = 1e3 * seconds.back()};
}

void SummariseLatency(SimulationResult& result) {
  std::vector<double> queue;
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> e2e;
  for (const RequestResult& request : result.requests) {
    if (request.outcome != Outcome::kFinished) continue;
    queue.push_back(request.admitted_s - request.arrival_s);
    ttft.push_back(request.first_token_s - request.arrival_s);
    e2e.push_back(request.end_s - request.arrival_s);
    if (request.output_tokens > 1) {
      tpot.push_back((request.end_s - request.first_token_s) /
                     static_cast<double>(request.output_tokens - 1));
    }
  }
  result.queue = Summarise(std::move(queue));
  result.ttft = Summarise(std::move(ttft));
  result.tpot = Summarise(std::move(tpot));
  result.e2e = Summarise(std::move(e2e));
}

void SummariseLoad(const SimulatorConfig& config, SimulationResult& result) {
  const double busy = result.session.busy_s;
  if (result.virtual_s > 0) {
    std::int64_t output = 0;
    for (const RequestResult& request : result.requests) {
      if (request.outcome == Outcome::kFinished) output += request.output_tokens;
    }
    result.busy_fraction = busy / result.virtual_s;
    result.output_tok_s = static_cast<double>(output) / result.virtual_s;
    result.req_s = static_cast<double>(result.session.finished) / result.virtual_s;
  }
  // A closed loop sends as fast as it is served, so it offers no load of its own.
  if (config.concurrency > 0) return;
  for (const RequestResult& request : result.requests) {
    result.arrival_span_s = std::max(result.arrival_span_s, request.arrival_s);
  }
  if (result.arrival_span_s > 0) {
    result.offered = busy / result.arrival_span_s;
    result.saturated = *result.offered > 1;
  } else {
    result.saturated = result.requests.size() > 1 && busy > 0;
  }
}

}  // namespace

Result<SimulationResult> Simulate(const Trace& trace, const SimulatorConfig& config) {
  const Status checked = CheckConfig(config);
  if (!checked.ok()) return checked;
  if (trace.size() == 0) return InvalidArgument("the trace has no requests; allowed: at least 1");
  const Result<ModelCost> cost = MakeModelCost(config.model, config.dtype);
  if (!cost.ok()) return cost.status();
  Result<KVCache> cache = MakeCache(trace, config);
  if (!cache.ok()) return cache.status();

  SimulationResult result;
  result.backend = cache->device().kind();
  result.backend_name = cache->device().name();
  const OutputScript script(
      trace, {.seed = config.seed, .acceptance = config.acceptance, .beams = config.beams});
  std::unique_ptr<SimulatedData> data;
  if (result.backend != BackendKind::kNull) {
    Result<std::unique_ptr<SimulatedData>> made =
        SimulatedData::Create(*cache, trace, script,
                              {.seed = config.seed,
                               .mla = config.model.mla,
                               .fault = config.fault,
                               .fault_step = config.fault_step,
                               .check = config.check});
    if (!made.ok()) return made.status();
    data = *std::move(made);
  } else if (config.check) {
    return InvalidArgument(
        "check compares stored rows, and the null backend stores none; allowed: "
        "backend cpu or cuda");
  }

  SimulatedModel model(trace, config, script, *cost, data.get());
  Recorder recorder(trace.size(), model, config.check ? data.get() : nullptr, config.observer);
  Result<Session> session = Session::Create(*cache, model,
                                            {.max_batch = config.max_batch,
                                             .max_step_tokens = config.prefill_chunk,
                                             .preempt = config.preempt},
                                            &recorder);
  if (!session.ok()) return session.status();

  const auto start = std::chrono::steady_clock::now();
  const Status replayed = Replay(trace, config, *session, *cache, model, recorder);
  if (!replayed.ok()) return replayed;
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  result.session = session->stats();
  result.cache = cache->GetStats();
  result.bytes_per_token = cache->footprint().bytes_per_token;
  result.bytes_per_block = cache->footprint().bytes_per_block;
  result.has_prefix = trace.has_token_identity();
  result.virtual_s = session->now();
  if (data != nullptr) result.device_s = data->device_s();
  if (config.check) result.check = data->check_result();
  result.requests = recorder.TakeResults();
  SummariseLoad(config, result);
  SummariseLatency(result);
  return result;
}

}  // namespace lariat
