// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lariat/trace.h"
#include "session/trace_parser.h"

namespace lariat::session {

// Gathers lines into a Trace. One use each.
class TraceBuilder {
 public:
  TraceBuilder(std::string_view name, TraceFormat format, const TraceOptions& options);

  // Takes a good line. It can still be refused, when the whole trace would need more token ids than
  // there are.
  Status Add(const ParsedLine& parsed, std::int64_t line);
  // Counts a bad line. An error when strict, or when the line makes the rest useless.
  Status AddBad(const LineError& error, std::int64_t line);
  // As many good lines as were asked for.
  bool full() const { return options_.limit > 0 && trace_.size() >= options_.limit; }

  Result<Trace> Finish() &&;

  // Numbers whose scrambling by a seed makes the prompts of a workload.
  static Trace Workload(std::string_view spec, std::int64_t input, std::int64_t output,
                        std::int64_t count, std::int64_t prefix, std::uint64_t seed);

 private:
  struct Chat {
    std::int64_t own;
    std::int64_t parent;
  };

  void SortByArrival();
  void FindParents();
  void Settle();  // fills what depends on the final order

  const TraceOptions options_;
  Trace trace_;
  std::vector<Chat> chats_;  // Bailian: of the good lines, in the file's order
};

}  // namespace lariat::session
