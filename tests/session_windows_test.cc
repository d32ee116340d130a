// SPDX-License-Identifier: Apache-2.0
// Session over caches with windows: what it admits, it can finish.
#include <span>
#include <vector>

#include "lariat/session.h"
#include "support/case_cache.h"
#include "support/catch.h"

namespace lariat {
namespace {

using testing::CaseCache;

// Other tokens in each step and beam; now and then all beams go on from the first one.
class Beams final : public Executor {
 public:
  explicit Beams(bool mixes) : mixes_(mixes) {}
  Status Run(const ExecutorStep& step, ExecutorOutput& output) override {
    firsts_.assign(step.items.size(), {});
    for (std::size_t i = 0; i < step.items.size(); ++i) {
      const ExecutorItem& item = step.items[i];
      if (!item.samples) continue;
      output.next[i] = 10 + item.beam * 100 + calls_++;
      for (int fork = 0; fork < item.forks; ++fork) firsts_[i].push_back(1000 + fork);
      output.first[i] = firsts_[i];
      if (mixes_ && step.items.size() > 1 && calls_ % 3 == 0) output.parents[i] = 0;
    }
    output.seconds = 1;
    return {};
  }

 private:
  const bool mixes_;
  int calls_ = 0;
  std::vector<std::vector<TokenId>> firsts_;
};

struct LastOutcome final : SessionObserver {
  Outcome outcome = Outcome::kFinished;
  void OnDone(const RequestResult& result) override { outcome = result.outcome; }
};

TEST_CASE("A request that is admitted in the smallest pool ends there, windows and beams or not",
          "[session]") {
  int ran = 0;
  for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kChunked}) {
    for (const int window : {1, 2, 3, 5, 8}) {
      for (const std::int64_t prompt : {1, 2, 5}) {
        for (const std::int64_t new_tokens : {2, 7}) {
          for (int beams = 1; beams <= 3; ++beams) {
            for (const std::int64_t step_tokens : {3, 16}) {
              for (std::int64_t pool = 1;; ++pool) {
                CacheConfig config = CaseCache::Config(2, pool);
                config.layers.push_back(config.layers[0]);
                config.layers.back().kind = kind;
                config.layers.back().window = window;
                KVCache cache = *KVCache::Create(config);
                Beams executor(/*mixes=*/pool % 2 == 0);
                LastOutcome last;
                Result<Session> session = Session::Create(
                    cache, executor, {.max_batch = 8, .max_step_tokens = step_tokens}, &last);
                REQUIRE(session.ok());
                Request request;
                request.prompt = CaseCache::Range(0, prompt);
                request.max_new_tokens = new_tokens;
                request.beams = beams;
                REQUIRE(session->Add(request).ok());
                if (last.outcome == Outcome::kNeverFits) continue;
                ++ran;
                Result<bool> more = true;
                while (more.ok() && *more) more = session->RunStep();
                INFO("window " << window << ", prompt " << prompt << ", beams " << beams
                               << ", step " << step_tokens << ", pool " << pool << ": "
                               << more.status().ToString());
                CHECK(more.ok());
                CHECK(last.outcome == Outcome::kFinished);
                break;
              }
            }
          }
        }
      }
    }
  }
  CHECK(ran == 2 * 5 * 3 * 2 * 3 * 2);
}

}  // namespace
}  // namespace lariat
