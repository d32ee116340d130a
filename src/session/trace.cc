// SPDX-License-Identifier: Apache-2.0
#include "lariat/trace.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstring>

#include "session/trace_parser.h"

namespace lariat {
namespace {

constexpr std::array<TraceFormat, 6> kFormats = {TraceFormat::kAuto,     TraceFormat::kMooncake,
                                                 TraceFormat::kAzure,    TraceFormat::kTokens,
                                                 TraceFormat::kBurstGpt, TraceFormat::kBailian};

// first, first + 1, ... (std::iota would also form the number behind the last, which may not be a
// TokenId.)
void CountUp(std::span<TokenId> out, TokenId first) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = first + static_cast<TokenId>(i);
}

}  // namespace

std::string_view TraceFormatName(TraceFormat format) {
  switch (format) {
    case TraceFormat::kAuto: return "auto";
    case TraceFormat::kMooncake: return "mooncake";
    case TraceFormat::kAzure: return "azure";
    case TraceFormat::kTokens: return "tokens";
    case TraceFormat::kBurstGpt: return "burstgpt";
    case TraceFormat::kBailian: return "bailian";
  }
  return "unknown";
}

Result<TraceFormat> ParseTraceFormat(std::string_view name) {
  std::string names;
  for (const TraceFormat format : kFormats) {
    if (TraceFormatName(format) == name) return format;
    if (!names.empty()) names += ", ";
    names += TraceFormatName(format);
  }
  return InvalidArgument("format " + session::NotAllowed(session::Quoted(name), names));
}

std::string Trace::ErrorText(const TraceError& error) const {
  return name_ + ":" + session::NumberText(error.line) + ": " + error.field + ": " + error.text;
}

void Trace::PromptTokens(std::int64_t index, std::vector<TokenId>& out) const {
  assert(index >= 0 && index < size());
  const std::size_t length =
      static_cast<std::size_t>(requests_[static_cast<std::size_t>(index)].input_length);
  const std::int64_t first = sources_[static_cast<std::size_t>(index)].prompt;
  out.resize(length);
  switch (prompts_) {
    case Prompts::kHashed: {
      const std::int32_t* id = ids_.data() + first;
      const std::size_t step = static_cast<std::size_t>(hash_tokens_);
      for (std::size_t begin = 0; begin < length; begin += step, ++id) {
        const std::size_t end = std::min(begin + step, length);
        CountUp(std::span(out).subspan(begin, end - begin), *id * static_cast<TokenId>(step));
      }
      return;
    }
    case Prompts::kGiven:
      std::memcpy(out.data(), ids_.data() + first, length * sizeof(TokenId));
      return;
    case Prompts::kUnique: CountUp(out, static_cast<TokenId>(first)); return;
    case Prompts::kPrefixed: {
      // An odd factor and a sum modulo 2^31 map distinct numbers to distinct ids.
      const std::size_t prefix = static_cast<std::size_t>(prefix_);
      const std::uint32_t own =
          static_cast<std::uint32_t>(first) - static_cast<std::uint32_t>(prefix);
      for (std::size_t i = 0; i < length; ++i) {
        const std::uint32_t number = static_cast<std::uint32_t>(i) + (i < prefix ? 0 : own);
        out[i] = static_cast<TokenId>((number * multiplier_ + offset_) & 0x7fffffffU);
      }
      return;
    }
  }
}

TokenId Trace::OutputToken(std::int64_t index, std::int64_t i) const {
  assert(index >= 0 && index < size());
  const Source& source = sources_[static_cast<std::size_t>(index)];
  assert(i >= 0 && i < requests_[static_cast<std::size_t>(index)].output_length);
  if (source.output >= 0) return ids_[static_cast<std::size_t>(source.output + i)];
  return static_cast<TokenId>(-1 - (source.output_base + i));
}

std::span<const TokenId> Trace::GivenOutput(std::int64_t index) const {
  assert(index >= 0 && index < size());
  const Source& source = sources_[static_cast<std::size_t>(index)];
  if (source.output < 0) return {};
  return {ids_.data() + source.output,
          static_cast<std::size_t>(requests_[static_cast<std::size_t>(index)].output_length)};
}

}  // namespace lariat
