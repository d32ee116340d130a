// SPDX-License-Identifier: Apache-2.0
// From a file or a text to a Trace: options, format, then line by line.
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <streambuf>
#include <system_error>
#include <utility>

#include "session/trace_builder.h"
#include "session/trace_lines.h"

namespace lariat {
namespace session {

std::string Quoted(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) out += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > kLongest) out += "...";
  return out + "'";
}

namespace {

constexpr std::string_view kBlank = " \t\r\n\v\f";

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// What one line gives away.
TraceFormat FormatOfLine(std::string_view line) {
  if (line.front() == '{') {
    if (Has(line, "\"hash_ids\"")) {
      return Has(line, "\"chat_id\"") ? TraceFormat::kBailian : TraceFormat::kMooncake;
    }
    return Has(line, "\"prompt\"") ? TraceFormat::kTokens : TraceFormat::kAuto;
  }
  if (Has(line, "ContextTokens")) return TraceFormat::kAzure;
  if (Has(line, "Request tokens")) return TraceFormat::kBurstGpt;
  // "2023-11-16 18:17:03.9799600,4808,10", a file without its header.
  return line.size() > 10 && line[4] == '-' && line[7] == '-' && Has(line, ",")
             ? TraceFormat::kAzure
             : TraceFormat::kAuto;
}

// The format of the first line that can be told.
TraceFormat DetectFormat(std::string_view head) {
  while (!head.empty()) {
    const std::size_t end = head.find('\n');
    std::string_view line = head.substr(0, end);
    line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
    if (!line.empty()) {
      const TraceFormat format = FormatOfLine(line);
      if (format != TraceFormat::kAuto) return format;
    }
    if (end == std::string_view::npos) break;
    head.remove_prefix(end + 1);
  }
  return TraceFormat::kAuto;
}

Status CheckOptions(const TraceOptions& options) {
  if (options.limit < 0) {
    return InvalidArgument("limit " + NotAllowed(NumberText(options.limit), "0 (all) and up"));
  }
  if (!(options.rate >= 1e-9 && options.rate <= 1e9)) {
    return InvalidArgument("rate " + NotAllowed(NumberText(options.rate), "1e-9..1e9"));
  }
  return Status::Ok();
}

std::unique_ptr<LineParser> MakeParser(TraceFormat format) {
  switch (format) {
    case TraceFormat::kMooncake: return MakeMooncakeParser();
    case TraceFormat::kAzure: return MakeAzureParser();
    case TraceFormat::kTokens: return MakeTokensParser();
    case TraceFormat::kBurstGpt: return MakeBurstGptParser();
    case TraceFormat::kBailian: return MakeBailianParser();
    case TraceFormat::kAuto: break;
  }
  return nullptr;
}

Status ReadLines(LineReader& lines, LineParser& parser, TraceBuilder& builder) {
  ParsedLine parsed;
  while (!builder.full() && lines.Next()) {
    if (lines.too_long()) {
      const LineError error{"line", "is over " + NumberText(LineReader::kMaxLine) + " bytes long"};
      if (Status s = builder.AddBad(error, lines.number()); !s.ok()) return s;
      continue;
    }
    if (lines.line().find_first_not_of(kBlank) == std::string_view::npos) continue;
    if (const auto error = parser.Parse(lines.line(), parsed)) {
      if (Status s = builder.AddBad(*error, lines.number()); !s.ok()) return s;
    } else if (parsed.is_request) {
      if (Status s = builder.Add(parsed, lines.number()); !s.ok()) return s;
    }
  }
  return Status::Ok();
}

Result<Trace> ReadStream(std::istream& in, std::string_view name, const TraceOptions& options) {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  LineReader lines(in);
  TraceFormat format = options.format;
  if (format == TraceFormat::kAuto) format = DetectFormat(lines.Head());
  if (format == TraceFormat::kAuto) {
    const bool empty = lines.Head().find_first_not_of(kBlank) == std::string_view::npos;
    return InvalidArgument(std::string(name) +
                           (empty ? ": holds no request"
                                  : ": format cannot be told; allowed: mooncake, azure, burstgpt, "
                                    "bailian, tokens"));
  }
  const std::unique_ptr<LineParser> parser = MakeParser(format);
  TraceBuilder builder(name, format, options);
  if (Status s = ReadLines(lines, *parser, builder); !s.ok()) return s;
  if (lines.failed()) {
    return InvalidArgument(std::string(name) + ":" + NumberText(lines.number()) +
                           ": line: the file cannot be read any further");
  }
  return std::move(builder).Finish();
}

// A stream over text that somebody else holds.
class TextBuffer : public std::streambuf {
 public:
  explicit TextBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());  // only ever read
    setg(begin, begin, begin + text.size());
  }
};

}  // namespace
}  // namespace session

Result<Trace> ReadTrace(const std::string& path, const TraceOptions& options) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) {
    return InvalidArgument(path + ": is a directory; allowed: a trace file");
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const std::string why = errno != 0 ? std::generic_category().message(errno) : "unknown reason";
    return InvalidArgument(path + ": cannot be read: " + why);
  }
  return session::ReadStream(in, path, options);
}

Result<Trace> ParseTrace(std::string_view text, std::string_view name,
                         const TraceOptions& options) {
  session::TextBuffer buffer(text);
  std::istream in(&buffer);
  return session::ReadStream(in, name, options);
}

}  // namespace lariat
