// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <string_view>

namespace lariat::session {

// Splits a stream into lines. Holds one line and what was read with it, never the whole file. A
// line ends with LF, CRLF or the end of the stream; a UTF-8 byte order mark at the start is
// dropped.
class LineReader {
 public:
  static constexpr std::size_t kChunk = std::size_t{1} << 18;
  // Room for a prompt of kMaxRequestTokens ids of 10 digits.
  static constexpr std::size_t kMaxLine = std::size_t{256} << 20;

  explicit LineReader(std::istream& in, std::size_t max_line = kMaxLine);

  // The beginning of the stream, kChunk bytes or fewer.
  // REQUIRES: before the first Next.
  std::string_view Head() const { return Pending(); }

  // Moves to the next line; false at the end. The text is valid until the next call.
  bool Next();

  std::string_view line() const { return line_; }
  std::int64_t number() const { return number_; }  // of the line, from 1
  bool too_long() const { return too_long_; }      // it was over max_line bytes, and is not held
  bool failed() const { return in_.bad(); }        // the stream broke, rather than ended

 private:
  std::string_view Pending() const { return std::string_view(buffer_).substr(begin_); }
  bool Fill();  // reads one more chunk; false at the end
  // The first LF at or behind buffer_[from], reading on as needed; npos at the end of the stream.
  std::size_t FindEnd();

  std::istream& in_;
  const std::size_t max_line_;
  std::string buffer_;  // buffer_[begin_, size) is not yet given out
  std::size_t begin_ = 0;
  std::string_view line_;
  std::int64_t number_ = 0;
  bool too_long_ = false;
};

}  // namespace lariat::session
