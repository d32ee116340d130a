// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "session/trace_parser.h"

namespace lariat::session {

// A column that a reader of CSV wants.
struct CsvColumn {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::string_view name;
  std::size_t place = kNone;  // in a file without a header; kNone: there is none
  bool required = true;
};

// Takes the lines of one CSV file apart, in order. Cells have no quotes, which none of the formats
// has. The first line is a header where it does not begin with a digit.
class CsvReader {
 public:
  // width: columns of a file without a header.
  CsvReader(std::span<const CsvColumn> columns, std::size_t width);

  // is_row is false for the header. `line` must stay while cells are read.
  // Errors: a required column that the row or the header lacks; a column twice; another number of
  //   cells than the header has.
  std::optional<LineError> Read(std::string_view line, bool& is_row);

  // Without blanks around it; empty where the file has no such column.
  std::string_view Cell(std::size_t column) const;

  // The cell as a whole number in 1..kMaxRequestTokens.
  std::optional<LineError> TakeLength(std::size_t column, std::int64_t& out) const;

 private:
  std::optional<LineError> ReadHeader();
  std::optional<LineError> CheckRow() const;

  const std::span<const CsvColumn> columns_;
  bool seen_first_ = false;
  std::size_t width_;
  std::vector<std::size_t> places_;  // of columns_ in a row
  std::vector<std::string_view> cells_;
};

}  // namespace lariat::session
