// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "lariat/trace.h"
#include "lariat/types.h"

namespace lariat::session {

// What the simulated model puts out: the trace's tokens, and what is drawn beside them. A function
// of (trace, seed, request, position, beam) alone, so that a run cannot change it, and the check
// can make it again. Positions count a request's output tokens from 0.
//
// Speculation: a draft of position i is right with a probability, drawn once for each position.
// Beams: beam 0 puts out the trace's tokens and goes on from itself. Each other one has ids of its
// own, and in an eighth of the positions goes on from another beam, drawn among them all.
class OutputScript {
 public:
  struct Options {
    std::uint64_t seed = 0;
    double acceptance = 0;  // of a draft behind accepted ones, 0..1
    int beams = 1;
  };
  OutputScript(const Trace& trace, const Options& options);

  int beams() const { return beams_; }
  // Of the trace's request `index`, at position i < its output_length.
  TokenId Token(std::int64_t index, std::int64_t i, int beam) const;
  // The beam whose tokens before position i come before this one's.
  int Parent(std::int64_t index, std::int64_t i, int beam) const;
  // A draft for position i of beam 0: its token, or one that is not.
  TokenId Draft(std::int64_t index, std::int64_t i) const;
  // Overwrites `out` with the prompt and the first `count` output tokens of a beam, when it has
  // `count` of them.
  void Tokens(std::int64_t index, int beam, std::int64_t count, std::vector<TokenId>& out) const;

 private:
  enum class Draw : std::uint64_t { kAccept = 1, kToken, kMove, kParent };
  std::uint64_t Random(Draw what, std::int64_t index, std::int64_t i, int beam) const;

  const Trace& trace_;
  const std::uint64_t seed_;
  const double acceptance_;
  const int beams_;
};

}  // namespace lariat::session
