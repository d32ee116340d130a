// SPDX-License-Identifier: Apache-2.0
#include "session/simulator_script.h"

#include "session/synthetic_kv.h"

namespace lariat::session {

OutputScript::OutputScript(const Trace& trace, const Options& options)
    : trace_(trace),
      seed_(MixBits(options.seed + 0x6c61726961740002U)),
      acceptance_(options.acceptance),
      beams_(options.beams) {}

std::uint64_t OutputScript::Random(Draw what, std::int64_t index, std::int64_t i, int beam) const {
  std::uint64_t bits = MixBits(seed_ + static_cast<std::uint64_t>(what));
  bits = MixBits(bits + static_cast<std::uint64_t>(index));
  bits = MixBits(bits + static_cast<std::uint64_t>(i));
  return MixBits(bits + static_cast<std::uint64_t>(beam));
}

TokenId OutputScript::Token(std::int64_t index, std::int64_t i, int beam) const {
  if (beam == 0) return trace_.OutputToken(index, i);
  return ~static_cast<TokenId>(Random(Draw::kToken, index, i, beam) >> 33);  // 31 bits: negative
}

int OutputScript::Parent(std::int64_t index, std::int64_t i, int beam) const {
  const std::int64_t last = trace_.requests()[static_cast<std::size_t>(index)].output_length - 1;
  // In front of the first token is the prompt; behind the last nothing is stored.
  if (beam == 0 || i == 0 || i == last) return beam;
  if (Random(Draw::kMove, index, i, beam) % 8 != 0) return beam;
  return static_cast<int>(Random(Draw::kParent, index, i, beam) %
                          static_cast<std::uint64_t>(beams_));
}

TokenId OutputScript::Draft(std::int64_t index, std::int64_t i) const {
  const TokenId right = Token(index, i, 0);
  constexpr double kUnit = 0x1p-53;  // 53 bits, [0, 1)
  const double drawn = static_cast<double>(Random(Draw::kAccept, index, i, 0) >> 11) * kUnit;
  return drawn < acceptance_ ? right : ~right;
}

void OutputScript::Tokens(std::int64_t index, int beam, std::int64_t count,
                          std::vector<TokenId>& out) const {
  trace_.PromptTokens(index, out);
  const std::size_t prompt = out.size();
  out.resize(prompt + static_cast<std::size_t>(count));
  // From the last one back, along those that it goes on from.
  for (std::int64_t i = count - 1; i >= 0; --i) {
    out[prompt + static_cast<std::size_t>(i)] = Token(index, i, beam);
    beam = Parent(index, i, beam);
  }
}

}  // namespace lariat::session
