// SPDX-License-Identifier: Apache-2.0
#include "session/trace_csv.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lariat::session {
namespace {

std::string_view Trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

void Split(std::string_view line, std::vector<std::string_view>& cells) {
  cells.clear();
  for (;;) {
    const std::size_t comma = line.find(',');
    cells.push_back(Trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

CsvReader::CsvReader(std::span<const CsvColumn> columns, std::size_t width)
    : columns_(columns), width_(width) {
  for (const CsvColumn& column : columns) places_.push_back(column.place);
}

std::optional<LineError> CsvReader::Read(std::string_view line, bool& is_row) {
  Split(line, cells_);
  const std::string_view first = cells_.front();
  is_row =
      std::exchange(seen_first_, true) || first.empty() || (first[0] >= '0' && first[0] <= '9');
  return is_row ? CheckRow() : ReadHeader();
}

std::optional<LineError> CsvReader::ReadHeader() {
  width_ = cells_.size();
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const std::string name(columns_[c].name);
    const auto first = std::find(cells_.begin(), cells_.end(), name);
    places_[c] = CsvColumn::kNone;
    if (first == cells_.end()) {
      if (!columns_[c].required) continue;
      return LineError{name, "is missing in the header", true};
    }
    if (std::find(first + 1, cells_.end(), name) != cells_.end()) {
      return LineError{name, "appears twice in the header", true};
    }
    places_[c] = static_cast<std::size_t>(first - cells_.begin());
  }
  return std::nullopt;
}

std::optional<LineError> CsvReader::CheckRow() const {
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].required && places_[c] >= cells_.size()) {
      return LineError{std::string(columns_[c].name), "is missing"};
    }
  }
  if (cells_.size() == width_) return std::nullopt;
  return LineError{"line", "has " + NumberText(cells_.size()) +
                               " columns; allowed: " + NumberText(width_) + ", as the header"};
}

std::string_view CsvReader::Cell(std::size_t column) const {
  return places_[column] < cells_.size() ? cells_[places_[column]] : std::string_view();
}

std::optional<LineError> CsvReader::TakeLength(std::size_t column, std::int64_t& out) const {
  const std::string_view cell = Cell(column);
  const char* end = cell.data() + cell.size();
  const auto [stop, code] = std::from_chars(cell.data(), end, out);
  if (code == std::errc() && stop == end && out >= 1 && out <= kMaxRequestTokens) {
    return std::nullopt;
  }
  return LineError{
      std::string(columns_[column].name),
      NotAllowed(Quoted(cell), "a whole number in 1.." + NumberText(kMaxRequestTokens))};
}

}  // namespace lariat::session
