// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/cache_pair.h"

namespace lariat::testing {

using reference::CacheModel;
using reference::ModelEntry;
using reference::ModelSequence;

struct Setting {
  std::int64_t block_size = 1;
  std::int64_t blocks = 8;
  int steps_in_flight = 1;
  Reuse reuse = Reuse::kBlock;
  HostTier host = {};
  int sequences = 10;                    // open at once
  std::int64_t blocks_of_sequence = 10;  // the most
  EvictionPolicy eviction = EvictionPolicy::kLru;
  BackendKind backend = BackendKind::kNull;
  std::vector<reference::ModelSide> sides = {};  // groups besides full attention; no window: of MLA
  std::int64_t max_events = 0;
};

// Random calls on a CachePair, each with what the model says it may answer. No call is REQUIREd to
// succeed: wrong ones are made on purpose, seldom.
class RandomCalls {
 public:
  RandomCalls(const Setting& setting, unsigned seed)
      : random_(seed),
        block_(setting.block_size),
        limit_(LimitOf(setting)),
        pair_(MakeConfig(setting), MakeModel(setting)) {}

  // Makes one call. Ends all with an empty cache: see Drain.
  void One() {
    if (model().config().host_blocks > 0 && Chance(20)) return Transfer();
    const std::int64_t dice = Roll(100);
    if (pair_.planning()) {
      if (dice < 70) return Prepare();
      if (dice < 85) return Drop();
    }
    if (dice < 14) return Open();
    if (dice < 44) return Plan();
    if (dice < 68) return Commit();
    if (dice < 74) return Discard();
    if (dice < 82) return Close();
    if (dice < 86) return Truncate();
    if (dice < 90) return Fork();
    if (dice < 93) return SetTokens();
    if (dice < 95) return Keep();
    if (dice < 96 && Roll(6) == 0) return Clear();
    if (dice < 97) return Match();
    if (dice < 99) return Limit();
    return Rest();
  }

  CachePair& pair() { return pair_; }
  void SetAttempts(CachePair::Attempts attempts) { pair_.SetAttempts(std::move(attempts)); }

  // Ends every step and sequence; all blocks are free or idle then.
  void Drain();

 private:
  static std::int64_t LimitOf(const Setting& setting) {
    return std::max<std::int64_t>(12, setting.block_size * setting.blocks_of_sequence);
  }
  static CacheConfig MakeConfig(const Setting& setting) {
    CacheConfig config;
    config.layers = {{.kv_heads = 1, .k_dim = 2, .v_dim = 2}};
    for (const reference::ModelSide& side : setting.sides) {
      LayerSpec& layer = config.layers.emplace_back(config.layers[0]);
      layer.kind = side.chunked ? LayerKind::kChunked : LayerKind::kSliding;
      layer.window = static_cast<int>(side.window);
      if (side.window > 0) continue;
      layer.kind = LayerKind::kMla;
      layer.k_dim = 4;
      layer.v_dim = 0;
    }
    config.backend = setting.backend;
    config.memory.num_blocks = setting.blocks;
    config.block_size = static_cast<int>(setting.block_size);
    config.reuse = setting.reuse;
    config.host = setting.host;
    config.eviction = setting.eviction;
    config.max_events = setting.max_events;
    config.max_pinned_blocks = setting.blocks / 4;
    config.max_steps_in_flight = setting.steps_in_flight;
    config.max_sequences = setting.sequences;
    config.max_tokens_per_sequence = LimitOf(setting);
    config.max_tokens_per_step = 8 * setting.block_size + 24;
    return config;
  }
  static reference::ModelConfig MakeModel(const Setting& setting) {
    const CacheConfig config = MakeConfig(setting);
    return {setting.block_size,
            setting.blocks,
            setting.steps_in_flight,
            config.max_sequences,
            config.max_tokens_per_sequence,
            config.max_tokens_per_step,
            setting.reuse != Reuse::kNone,
            setting.reuse == Reuse::kToken,
            config.max_pinned_blocks,
            setting.host.num_blocks,
            setting.host.write,
            setting.host.write_after_hits,
            std::min(setting.host.clean_blocks, setting.host.num_blocks),
            setting.eviction == EvictionPolicy::kPriority,
            setting.sides};
  }

  std::int64_t Roll(std::int64_t sides) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sides));
  }
  bool Chance(std::int64_t percent) { return Roll(100) < percent; }
  CacheModel& model() { return pair_.model(); }
  std::set<Code> Unless(std::set<Code> codes) const {
    return pair_.planning() ? std::set<Code>{Code::kNotReady} : codes;
  }

  SequenceId AnySequence() {
    const auto& all = model().sequences();
    if (all.empty()) return SequenceId{987654};
    return std::next(all.begin(), Roll(std::ssize(all)))->first;
  }

  // Few families of tokens, so that prompts and generated tokens often agree.
  TokenId Token(std::int64_t place) {
    if (Chance(2) && (model().config().host_blocks == 0 || Chance(30))) family_ = Roll(3);
    return static_cast<TokenId>(family_ * 100000 - 150000 + place);
  }

  void Open() {
    std::vector<TokenId> prompt(Chance(8) ? 0 : 1 + Roll(Chance(50) ? 4 * block_ : 2 * block_ + 4));
    family_ = Roll(3);
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = Token(static_cast<std::int64_t>(i));
    }
    static const std::uint64_t kExtra[] = {7, 9};
    OpenOptions options;
    if (Chance(20)) options.salt = "tenant";
    if (Chance(10)) options.adapter = "tenant";
    if (Chance(10)) options.extra_keys = kExtra;
    if (Chance(30)) options.max_length = 1 + Roll(limit_);
    if (Chance(2)) options.max_length = limit_ + 1;
    if (Chance(1)) options.max_length = -1;
    const std::vector<Retention> retention = AnyRetention();
    options.retention = retention;
    std::set<Code> codes;
    if (!RetentionOk(retention)) codes.insert(Code::kInvalidArgument);
    const std::int64_t most = options.max_length == 0 ? limit_ : options.max_length;
    if (most < 0 || most > limit_ || std::ssize(prompt) > most)
      codes.insert(Code::kInvalidArgument);
    if (std::ssize(model().sequences()) >= model().config().max_sequences) {
      codes.insert(Code::kResourceExhausted);
    }
    if (codes.empty()) codes.insert(Code::kOk);
    SequenceId ids[2] = {};
    const Code code =
        pair_.Call(Text("Open ", prompt.size()), Unless(codes), [&](KVCache& cache, int which) {
          auto opened = cache.Open(prompt, options);
          if (opened.ok()) ids[which] = *opened;
          return opened.status();
        });
    if (code == Code::kOk) {
      if (ids[0] != ids[1] || ids[0] == SequenceId::kNone) pair_.Fail("handles");
      if (!used_.insert(ids[0]).second) pair_.Fail("a handle came twice");
      model().Open(ids[0], prompt, reference::OptionsKey(options), options.max_length, retention);
    }
    pair_.CheckState();
    if (code == Code::kOk && model().config().host_blocks > 0 && Chance(60)) {
      Bring(ids[0], /*resumes=*/false);
    }
  }
  std::vector<Retention> AnyRetention();
  bool RetentionOk(const std::vector<Retention>& retention) const;

  void AddItem(std::vector<StepItem>& items, std::string& what) {
    StepItem item{.sequence = AnySequence(), .num_tokens = 1};
    const auto found = model().sequences().find(item.sequence);
    if (found == model().sequences().end()) {
      items.push_back(item);
      return;
    }
    const ModelSequence& sequence = found->second;
    const bool first = !sequence.planned && !sequence.prompt.empty();
    item.num_tokens = 1 + Roll(Chance(30) ? 1 : 2 * block_ + 2);
    if (Chance(50)) {  // often: what is left of the prompt
      item.num_tokens = std::max<std::int64_t>(
          1, std::ssize(sequence.prompt) - model().Planned(sequence, item.sequence));
    }
    if (!first && Chance(25)) item.num_drafts = Roll(item.num_tokens);
    if (Chance(1)) item.num_tokens = Roll(3) - 2;
    if (Chance(1)) item.num_drafts = item.num_tokens;
    what += Text(" ", CachePair::Name(item.sequence), "+", item.num_tokens, "d", item.num_drafts);
    items.push_back(item);
  }

  // Positions equal to the rows' indices, which is the default spelled out.
  void AddPositions(StepItem& item) {
    const auto found = model().sequences().find(item.sequence);
    if (found == model().sequences().end() || item.num_tokens < 1) return;
    const ModelSequence& sequence = found->second;
    std::int64_t start = model().Planned(sequence, item.sequence);
    if (!sequence.planned) start = model().Match(sequence.prompt, sequence.options).tokens;
    std::vector<std::int32_t>& list = positions_.emplace_back();
    for (std::int64_t i = 0; i < item.num_tokens; ++i) {
      list.push_back(static_cast<std::int32_t>(std::min(start + i, limit_ - 1)));
    }
    if (Chance(5)) list[static_cast<std::size_t>(Roll(std::ssize(list)))] = -1;
    if (Chance(5)) list.push_back(0);
    item.positions = list;
  }

  void Plan() {
    if (pair_.planning()) {
      pair_.Call("Plan over a plan", {Code::kNotReady}, [&](KVCache& cache, int) {
        const StepItem item{.sequence = AnySequenceFixed(), .num_tokens = 1};
        return cache.Plan(std::span(&item, 1)).status();
      });
      return;
    }
    std::vector<StepItem> items;
    std::string what = "Plan";
    const std::int64_t count = 1 + Roll(4);
    for (std::int64_t i = 0; i < count; ++i) {
      AddItem(items, what);
      const auto same = [&](const StepItem& item) {
        return item.sequence == items.back().sequence;
      };
      if (items.size() > 1 && std::any_of(items.begin(), items.end() - 1, same) && !Chance(5)) {
        items.pop_back();
        what += "(not)";
      }
    }
    if (items.empty()) return;
    positions_.clear();
    positions_.reserve(items.size());
    for (StepItem& item : items) {
      if (Chance(8)) AddPositions(item);
    }
    StepShape shape;
    if (Chance(20)) shape.max_tokens = 1 + Roll(model().config().max_tokens_per_step + 1);
    if (Chance(20)) shape.max_sequences = static_cast<int>(1 + Roll(11));
    const reference::ModelPlan expected = model().CheckPlan(items, shape);
    PlanFailure failures[2];
    const std::string before = pair_.snapshot();
    const Code code = pair_.Call(what, expected.codes, [&](KVCache& cache, int which) {
      auto planned = cache.Plan(items, shape, &failures[which]);
      if (planned.ok()) pair_.plan().steps[which] = *std::move(planned);
      return planned.status();
    });
    if (code == Code::kResourceExhausted || code == Code::kNeverFits) {
      CheckFailure(failures[0], expected.failure);
    } else if (code == Code::kOk) {
      before_plan_ = before;
      model().PlanStep(items, expected.copy_idle);
      CheckRows(shape);
    }
    pair_.CheckState();
  }
  SequenceId AnySequenceFixed() { return model().plan()->entries[0].sequence; }

  void CheckFailure(const PlanFailure& got, const PlanFailure& want) {
    if (got.needed != want.needed || got.available != want.available ||
        got.in_transit != want.in_transit) {
      pair_.Fail(Text("PlanFailure {", got.needed, ", ", got.available, "}, should be {",
                      want.needed, ", ", want.available, "}"));
    }
    std::map<SequenceId, std::int64_t> needs;
    for (const SequenceNeed& need : want.sequences) needs[need.sequence] += need.blocks;
    for (const SequenceNeed& need : got.sequences) needs[need.sequence] -= need.blocks;
    for (const auto& [id, difference] : needs) {
      if (difference != 0) pair_.Fail(Text("PlanFailure of ", CachePair::Name(id)));
    }
  }

  void CheckRows(const StepShape& shape) {
    const std::vector<ModelEntry>& entries = model().plan()->entries;
    for (const Step& step : pair_.plan().steps) {
      std::int64_t rows = 0;
      if (!step.valid() || step.rows().size() != entries.size()) pair_.Fail("rows()");
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const StepRows& got = step.rows()[i];
        const ModelEntry& want = entries[i];
        if (got.sequence != want.sequence || got.first_row != want.first_row ||
            got.start != want.start || got.count != want.count || got.hit != want.hit) {
          pair_.Fail(Text("rows of ", CachePair::Name(want.sequence), ": start ", got.start,
                          " count ", got.count, " hit ", got.hit, ", should be ", want.start, " ",
                          want.count, " ", want.hit));
        }
        rows += want.count;
      }
      const std::int64_t padded = shape.max_tokens == 0 ? rows : shape.max_tokens;
      const int sequences =
          shape.max_sequences == 0 ? static_cast<int>(entries.size()) : shape.max_sequences;
      if (step.num_tokens() != rows || step.padded_tokens() != padded ||
          step.padded_sequences() != sequences || step.id() <= last_step_) {
        pair_.Fail("shape of the step");
      }
    }
  }

  void Prepare() {
    pair_.Call("Prepare", {Code::kOk}, [&](KVCache& cache, int which) {
      return cache.Prepare(pair_.plan().steps[which], Stream{});
    });
    last_step_ = pair_.plan().steps[0].id();
    const std::string wrong =
        model().Prepare([&](SequenceId id, int group) { return pair_.TableOf(id, group); });
    if (!wrong.empty()) pair_.Fail(wrong);
    pair_.TakePlan();
    pair_.CheckState();
    if (Chance(10)) {
      pair_.Call("Prepare again", {Code::kInvalidArgument}, [&](KVCache& cache, int which) {
        return cache.Prepare(pair_.live().back().steps[which], Stream{});
      });
    }
    if (Chance(20)) Append();
  }

  void Append() {
    static std::vector<float> input(4096);
    const std::size_t which_step = static_cast<std::size_t>(Roll(std::ssize(pair_.live())));
    const bool latest = which_step + 1 == pair_.live().size();
    pair_.Call("Append", {latest ? Code::kOk : Code::kNotReady}, [&](KVCache& cache, int which) {
      AppendInputs inputs{.k = input.data(), .v = input.data() + 2048};
      return cache.Append(pair_.live()[which_step].steps[which], 0, inputs, Stream{});
    });
  }

  void Drop() {
    pair_.Call("drop the plan", {Code::kOk}, [&](KVCache&, int which) {
      pair_.plan().steps[which] = Step();
      return Status::Ok();
    });
    pair_.ErasePlan();
    model().DropPlan();
    if (pair_.snapshot() != before_plan_) {
      pair_.Fail(Text("the dropped plan left traces; before it:\n", before_plan_));
    }
    pair_.CheckState();
  }

  void Commit();
  void Discard();
  void Close();
  void Truncate();
  void Fork();
  void SetTokens();
  void Clear();
  void Keep();
  std::int64_t RemoveSalt(const std::string& salt);  // of the model
  void SetQuota(const std::string& salt, std::int64_t limit);
  void Limit();
  void Transfer();
  void Suspend(SequenceId id);
  void Bring(SequenceId id, bool resumes);
  void Accept(TransferId id);
  // The blocks of a transfer's items, as the snapshot tells.
  std::vector<int> BlocksOf(TransferId id) const;
  // kNotReady for a sequence that is suspended or in transit.
  std::set<Code> UnlessAway(const ModelSequence& sequence, std::set<Code> codes) const {
    return Unless(sequence.away() ? std::set<Code>{Code::kNotReady} : codes);
  }
  void Match();
  void Rest();

  std::mt19937_64 random_;
  std::int64_t block_;
  std::int64_t limit_;
  CachePair pair_;
  std::int64_t family_ = 0;
  std::set<SequenceId> used_;
  std::vector<std::vector<std::int32_t>> positions_;
  std::string before_plan_;
  std::uint64_t last_step_ = 0;
  std::uint64_t last_transfer_ = 0;
  std::vector<std::pair<std::vector<TokenId>, bool>> pinned_;  // once, with the salt or without
};

}  // namespace lariat::testing
