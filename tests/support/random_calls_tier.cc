// SPDX-License-Identifier: Apache-2.0
// Random calls of the host tier.
#include <sstream>

#include "support/random_calls.h"

namespace lariat::testing {

void RandomCalls::Transfer() {
  if (Chance(25)) {  // any of those that there were, or one that there was not
    const auto next = static_cast<std::int64_t>(model().next_transfer());
    return Accept(TransferId{
        static_cast<std::uint64_t>(Chance(70) && !model().transfers().empty()
                                       ? static_cast<std::int64_t>(model().transfers().front().id) +
                                             Roll(std::ssize(model().transfers()))
                                       : Roll(next + 2))});
  }
  const SequenceId id = AnySequence();
  const auto found = model().sequences().find(id);
  if (found == model().sequences().end()) {
    for (const bool resumes : {false, true}) {
      pair_.Call("a transfer of none", Unless({Code::kInvalidArgument}), [&](KVCache& cache, int) {
        return (resumes ? cache.Resume(id) : cache.Fetch(id)).status();
      });
    }
    pair_.Call("Suspend of none", Unless({Code::kInvalidArgument}),
               [&](KVCache& cache, int) { return cache.Suspend(id).status(); });
    return pair_.CheckState();
  }
  // Mostly what may go well.
  const ModelSequence& sequence = found->second;
  if (Chance(10)) return Chance(50) ? Suspend(id) : Bring(id, Chance(50));
  if (sequence.suspended) return Bring(id, /*resumes=*/true);
  if (sequence.planned) return Suspend(id);
  Bring(id, /*resumes=*/false);
}

void RandomCalls::Suspend(SequenceId id) {
  const ModelSequence& sequence = model().sequences().at(id);
  CacheModel::Move move;
  std::set<Code> codes;
  if (sequence.away() || pair_.planning()) {
    codes = {Code::kNotReady};
  } else if (!sequence.planned) {
    codes = {Code::kInvalidArgument};
  } else if (model().InLiveStep(id)) {
    codes = {Code::kNotReady};
  } else {
    CacheModel trial = model();
    move = trial.Suspend(id);
    codes = {move.code};
  }
  TransferId ids[2] = {};
  const Code code =
      pair_.Call(Text("Suspend ", CachePair::Name(id)), codes, [&](KVCache& cache, int which) {
        const auto transfer = cache.Suspend(id);
        if (transfer.ok()) ids[which] = *transfer;
        return transfer.status();
      });
  if (code == Code::kOk) {
    const TransferId want =
        move.copies == 0 ? TransferId::kNone : TransferId{model().next_transfer()};
    if (ids[0] != want || ids[1] != want) pair_.Fail("the transfer's id");
    model().Suspend(id);
  }
  pair_.CheckState();
}

void RandomCalls::Bring(SequenceId id, bool resumes) {
  const ModelSequence& sequence = model().sequences().at(id);
  CacheModel::Move move;
  std::set<Code> codes;
  if (pair_.planning() || sequence.transit != TransferId::kNone) {
    codes = {Code::kNotReady};
  } else if (resumes && !sequence.suspended) {
    codes = {Code::kInvalidArgument};
  } else if (!resumes && sequence.suspended) {
    codes = {Code::kNotReady};
  } else if (!resumes && sequence.planned) {
    codes = {Code::kInvalidArgument};
  } else {
    move = model().CheckMove(id, resumes);
    codes = {move.code};
  }
  TransferId ids[2] = {};
  const Code code = pair_.Call(Text(resumes ? "Resume " : "Fetch ", CachePair::Name(id)), codes,
                               [&](KVCache& cache, int which) {
                                 const auto transfer = resumes ? cache.Resume(id) : cache.Fetch(id);
                                 if (transfer.ok()) ids[which] = *transfer;
                                 return transfer.status();
                               });
  if (code == Code::kOk) {
    const TransferId want = move.waits ? TransferId{model().next_transfer()} : TransferId::kNone;
    if (ids[0] != want || ids[1] != want) pair_.Fail("the transfer's id");
    const auto blocks = [&](const reference::ModelTransfer& transfer) {
      if (move.waits) return BlocksOf(want);
      std::vector<int> known;
      for (const auto& item : transfer.items) known.push_back(item.block);
      return known;
    };
    const std::string wrong = resumes ? model().Resume(id, blocks) : model().Fetch(id, blocks);
    if (!wrong.empty()) pair_.Fail(wrong);
  }
  pair_.CheckState();
}

std::vector<int> RandomCalls::BlocksOf(TransferId id) const {
  const std::string begin = Text("transfer ", static_cast<std::uint64_t>(id), " of ");
  std::istringstream snapshot(pair_.snapshot());
  std::vector<int> blocks;
  for (std::string line; std::getline(snapshot, line);) {
    if (line.rfind(begin, 0) != 0) continue;
    std::istringstream items(line);
    for (std::string item; items >> item;) {
      if (item.find(':') != std::string::npos) blocks.push_back(std::stoi(item));
    }
  }
  return blocks;
}

void RandomCalls::Accept(TransferId id) {
  const bool known =
      id != TransferId::kNone && static_cast<std::uint64_t>(id) < model().next_transfer();
  const Code code =
      pair_.Call(Text("Accept ", static_cast<std::uint64_t>(id)),
                 Unless({known ? Code::kOk : Code::kInvalidArgument}), [&](KVCache& cache, int) {
                   const auto report = cache.Accept(id);
                   if (report.ok() && (report->id != id || report->failed)) {
                     pair_.Fail("the report");
                   }
                   return report.status();
                 });
  if (code == Code::kOk) model().Accept(id);
  pair_.CheckState();
}

}  // namespace lariat::testing
