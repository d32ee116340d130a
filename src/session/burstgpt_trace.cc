// SPDX-License-Identifier: Apache-2.0
// BurstGPT: CSV of Timestamp (seconds), Model, Request tokens, Response tokens, Total tokens, Log
// Type; since its second release also Session ID and Elapsed time. No tokens.
#include <array>
#include <charconv>

#include "session/trace_csv.h"

namespace lariat::session {
namespace {

constexpr double kMaxSeconds = 1e12;

// A file without a header has the six columns of the first release.
constexpr std::size_t kWidth = 6;
constexpr std::array<CsvColumn, 4> kColumns = {CsvColumn{.name = "Timestamp", .place = 0},
                                               CsvColumn{.name = "Request tokens", .place = 2},
                                               CsvColumn{.name = "Response tokens", .place = 3},
                                               CsvColumn{.name = "Session ID", .required = false}};
enum Column : std::size_t { kTimestamp, kRequest, kResponse, kSession };

class BurstGptParser : public LineParser {
 public:
  std::optional<LineError> Parse(std::string_view line, ParsedLine& out) override {
    if (auto error = rows_.Read(line, out.is_request)) return error;
    if (!out.is_request) return std::nullopt;
    TraceRequest& request = out.request;
    if (auto error = TakeTime(request.arrival_s)) return error;
    if (auto error = rows_.TakeLength(kRequest, request.input_length)) return error;
    // 0 stands for a request that failed: there is nothing to generate.
    if (auto error = rows_.TakeLength(kResponse, request.output_length)) return error;
    request.session = rows_.Cell(kSession);  // empty: a call of the API, not of a conversation
    return std::nullopt;
  }

 private:
  std::optional<LineError> TakeTime(double& seconds) const {
    const std::string_view cell = rows_.Cell(kTimestamp);
    const char* end = cell.data() + cell.size();
    const auto [stop, code] = std::from_chars(cell.data(), end, seconds);
    if (code == std::errc() && stop == end && seconds >= 0.0 && seconds <= kMaxSeconds) {
      return std::nullopt;
    }
    return LineError{"Timestamp", NotAllowed(Quoted(cell), "seconds in 0..1e12")};
  }

  CsvReader rows_{kColumns, kWidth};
};

}  // namespace

std::unique_ptr<LineParser> MakeBurstGptParser() { return std::make_unique<BurstGptParser>(); }

}  // namespace lariat::session
