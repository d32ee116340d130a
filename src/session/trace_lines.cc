// SPDX-License-Identifier: Apache-2.0
#include "session/trace_lines.h"

namespace lariat::session {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

LineReader::LineReader(std::istream& in, std::size_t max_line) : in_(in), max_line_(max_line) {
  Fill();
  if (Head().substr(0, kByteOrderMark.size()) == kByteOrderMark) begin_ = kByteOrderMark.size();
}

bool LineReader::Fill() {
  if (!in_.good()) return false;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t held = buffer_.size();
  buffer_.resize(held + kChunk);
  in_.read(buffer_.data() + held, static_cast<std::streamsize>(kChunk));
  const std::size_t got = static_cast<std::size_t>(in_.gcount());
  buffer_.resize(held + got);
  return got > 0;
}

std::size_t LineReader::FindEnd() {
  std::size_t searched = 0;  // bytes behind begin_ known to hold no LF
  for (;;) {
    const std::size_t end = buffer_.find('\n', begin_ + searched);
    if (end != std::string::npos) return end;
    if (buffer_.size() - begin_ > max_line_) {
      // Nobody will read it: drop it as it comes.
      too_long_ = true;
      begin_ = buffer_.size();
    }
    searched = buffer_.size() - begin_;
    if (!Fill()) return std::string::npos;
  }
}

bool LineReader::Next() {
  too_long_ = false;
  line_ = {};
  if (begin_ == buffer_.size() && !Fill()) return false;
  const std::size_t end = FindEnd();
  const bool last = end == std::string::npos;
  const std::size_t size = (last ? buffer_.size() : end) - begin_;
  ++number_;
  if (size > max_line_) too_long_ = true;
  if (!too_long_) {
    line_ = std::string_view(buffer_).substr(begin_, size);
    if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
  }
  begin_ += size + (last ? 0 : 1);
  return true;
}

}  // namespace lariat::session
