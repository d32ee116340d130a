// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lariat/status.h"
#include "lariat/types.h"

// Request traces: who asked when, with which prompt, for how many tokens. Part of lariat::session.
// Formats, field by field, and what counts as a bad line: docs/simulator.md.

namespace lariat {

namespace session {
class TraceBuilder;
}

// kAuto tells the format from the first lines.
enum class TraceFormat : std::uint8_t { kAuto, kMooncake, kAzure, kTokens, kBurstGpt, kBailian };

// "auto", "mooncake", "azure", "tokens", "burstgpt", "bailian".
std::string_view TraceFormatName(TraceFormat format);

// The inverse of TraceFormatName.
// Errors: kInvalidArgument: another name; the message lists the names.
Result<TraceFormat> ParseTraceFormat(std::string_view name);

// One request of a trace.
struct TraceRequest {
  std::int64_t index = 0;         // its place in Trace::requests(), which is in arrival order
  std::int64_t line = 0;          // of the file, from 1; of a workload: 0
  double arrival_s = 0.0;         // seconds from the trace's start, >= 0, already divided by `rate`
  std::int64_t input_length = 0;  // prompt tokens, 1..kMaxRequestTokens
  std::int64_t output_length = 0;  // tokens to generate, 1..kMaxRequestTokens
  std::int32_t priority = 0;       // as given; 0 where not
  std::string tenant;              // as given; empty where not
  std::string session;             // as given; empty where not
  // The request whose answer comes before this one in a session: its index, less than this one's.
  // -1: this is a first turn, as far as the trace says.
  std::int64_t parent = -1;
};

// The longest prompt and the longest output that a line may ask for; beyond, it is a bad line.
inline constexpr std::int64_t kMaxRequestTokens = std::int64_t{1} << 24;

// Why a line was not used. The file's name is Trace::name().
struct TraceError {
  std::int64_t line = 0;  // from 1
  std::string field;  // the format's own name ("hash_ids"), or "line" where no field is to blame
  std::string text;   // what it is, and what is allowed
};

// How a trace is read.
struct TraceOptions {
  TraceFormat format = TraceFormat::kAuto;
  std::int64_t limit = 0;  // stop after this many good lines; 0: read all
  double rate = 1.0;       // arrivals this many times as fast: 1e-9..1e9
  bool strict = false;     // a bad line is an error instead of being counted and left out
};

// A trace in memory. Requests are in order of arrival; those of equal arrival keep the file's
// order.
//   Prompts are not held as tokens but as what makes them (Mooncake: one number per 512 tokens,
//   Bailian: per 16), so that a trace of 145 million tokens takes about 3 MiB.
// Thread rules: immutable; const methods may be called from any number of threads.
// Copying copies everything; movable.
class Trace {
 public:
  Trace() = default;  // no requests

  const std::vector<TraceRequest>& requests() const { return requests_; }
  std::int64_t size() const { return static_cast<std::int64_t>(requests_.size()); }

  const std::string& name() const { return name_; }  // the file's, or the workload's text
  TraceFormat format() const { return format_; }     // never kAuto; of a workload: kTokens

  // False where the trace says only how long prompts are (Azure, BurstGPT): no two of them share a
  // token, and nothing about prefix hits can be learned from it.
  bool has_token_identity() const { return has_token_identity_; }

  std::int64_t input_tokens() const { return input_tokens_; }    // over all requests
  std::int64_t output_tokens() const { return output_tokens_; }  // over all requests
  std::int64_t max_tokens() const { return max_tokens_; }  // greatest input + output of a request

  // Lines that were left out (blank lines and a CSV header are no lines), and the first
  // kMaxErrors of the reasons, in the file's order.
  std::int64_t bad_lines() const { return bad_lines_; }
  const std::vector<TraceError>& errors() const { return errors_; }
  static constexpr std::size_t kMaxErrors = 100;

  // "file:line: field: text".
  std::string ErrorText(const TraceError& error) const;

  // Overwrites `out` with the prompt of request `index`: input_length ids, all >= 0. Allocates only
  // when out's capacity is too small.
  // REQUIRES: 0 <= index < size().
  void PromptTokens(std::int64_t index, std::vector<TokenId>& out) const;

  // The i-th token that request `index` generates: the one the trace gives, else a negative id that
  // no other request and no prompt has.
  // REQUIRES: 0 <= index < size(), 0 <= i < the request's output_length.
  TokenId OutputToken(std::int64_t index, std::int64_t i) const;

  // The output that the trace gives ("output" of the tokens format): output_length ids; empty where
  // it gives none.
  // REQUIRES: 0 <= index < size().
  std::span<const TokenId> GivenOutput(std::int64_t index) const;

 private:
  friend class session::TraceBuilder;

  // How a request's prompt is made from its part of ids_.
  enum class Prompts : std::uint8_t {
    kHashed,   // hash_tokens_ tokens from each id
    kGiven,    // the ids themselves
    kUnique,   // none is held: counted up over the trace
    kPrefixed  // as kUnique, behind a shared prefix, both scrambled by a seed
  };
  // Where a request's ids begin, in step with requests_.
  struct Source {
    std::int64_t prompt = 0;       // index into ids_, or the first number counted
    std::int64_t output = -1;      // index into ids_; -1: not given
    std::int64_t output_base = 0;  // output tokens of the requests before
  };

  std::string name_;
  TraceFormat format_ = TraceFormat::kTokens;
  Prompts prompts_ = Prompts::kGiven;
  bool has_token_identity_ = true;
  std::int64_t hash_tokens_ = 0;  // kHashed
  std::int64_t prefix_ = 0;       // kPrefixed: tokens that all prompts begin with
  std::uint32_t multiplier_ = 1;  // kPrefixed: odd
  std::uint32_t offset_ = 0;      // kPrefixed
  std::vector<TraceRequest> requests_;
  std::vector<Source> sources_;
  std::vector<std::int32_t> ids_;  // hash ids or tokens, of one request after another
  std::int64_t input_tokens_ = 0;
  std::int64_t output_tokens_ = 0;
  std::int64_t max_tokens_ = 0;
  std::int64_t bad_lines_ = 0;
  std::vector<TraceError> errors_;
};

// Reads a trace file, line by line. Accepts CRLF, a byte order mark, blank lines, no final newline
// and unknown fields; sorts by arrival. A line that cannot be used is counted and left out.
// Errors, each with "file:line: field:" where there is a line to name:
//   kInvalidArgument: the file cannot be read, is a directory or empty; options out of range; the
//     format cannot be told; no line is good; strict, and a line is bad.
Result<Trace> ReadTrace(const std::string& path, const TraceOptions& options = {});

// The same over text in memory; `name` stands for the file's in messages.
Result<Trace> ParseTrace(std::string_view text, std::string_view name,
                         const TraceOptions& options = {});

// A made-up load: "in=1024,out=256,n=1000" and optionally ",prefix=512", keys in any order.
// n requests of `in` prompt tokens and `out` output tokens each, all arriving at time 0. The first
// `prefix` prompt tokens are the same in all; every other prompt token appears once in the whole
// trace. The seed decides which ids those are; one spec and seed always give the same trace.
// Errors: kInvalidArgument: an unknown, missing or repeated key; a value that is not a whole
//   number; in, out outside 1..kMaxRequestTokens; n < 1 or > 10^7; prefix > in; more than 2^31
//   distinct prompt tokens or output tokens.
Result<Trace> MakeWorkload(std::string_view spec, std::uint64_t seed = 0);

}  // namespace lariat
