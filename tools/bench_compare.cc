// SPDX-License-Identifier: Apache-2.0
#include "bench_compare.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <utility>

namespace lariat::tools {
namespace {

using Json = nlohmann::ordered_json;

// What makes two rows the same one; keys that a row lacks count as null.
std::string KeyOf(const Json& row) {
  std::string key;
  for (const char* const name : {"op", "shape", "dtype", "backend", "hot", "pdl", "threads"}) {
    key.append(row.contains(name) ? row[name].dump() : "null").append(" ");
  }
  return key;
}

std::string NameOf(const Json& row) {
  std::string name = row.value("op", "");
  if (row.contains("hot")) name.append(row["hot"] == true ? " hot" : " cold");
  if (row.contains("dtype")) name.append(" ").append(row["dtype"].get<std::string>());
  if (row.contains("pdl") && row["pdl"] == true) name.append(" pdl");
  return name.append(" ").append(row.value("shape", ""));
}

// A row that can be compared: its texts are texts, its time is a number.
bool IsRow(const Json& row) {
  const auto is_text = [&](const char* name, bool needed) {
    return row.contains(name) ? row[name].is_string() : !needed;
  };
  return row.is_object() && is_text("op", true) && is_text("shape", true) &&
         is_text("dtype", false) && row.contains("median_us") &&
         (row["median_us"].is_number() || row["median_us"].is_null());
}

}  // namespace

Result<Comparison> Comparison::Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return InvalidArgument("--compare: " + path + " cannot be read");
  Json document = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (document.is_object() && document.contains("rows")) document = Json(document["rows"]);
  Comparison comparison;
  comparison.path_ = path;
  bool all = document.is_array();
  for (const Json& row : document) all = all && IsRow(row);
  if (!all)
    return InvalidArgument("--compare: " + path + " is not what lariat bench --json writes");
  comparison.old_ = Json::array();
  for (Json& row : document) {  // what an earlier comparison put in is no measurement
    if (!row["median_us"].is_null()) comparison.old_.push_back(std::move(row));
  }
  return comparison;
}

void Comparison::Annotate(Json& rows) const {
  std::map<std::string, double> old;
  for (const Json& row : old_) old[KeyOf(row)] = row["median_us"];
  std::set<std::string> seen, ops;
  for (Json& row : rows) {
    const auto found = old.find(KeyOf(row));
    seen.insert(KeyOf(row));
    ops.insert(row["op"]);
    const bool both = found != old.end() && found->second > 0;
    row["old_us"] = both ? Json(found->second) : Json();
    row["ratio"] = both ? Json(row["median_us"].get<double>() / found->second) : Json();
  }
  for (const Json& row : old_) {
    if (!ops.contains(row["op"]) || seen.contains(KeyOf(row))) continue;
    Json gone = row;
    gone["old_us"] = row["median_us"];
    gone["median_us"] = gone["ratio"] = Json();
    rows.push_back(std::move(gone));
  }
}

void Comparison::Print(const Json& rows) const {
  fmt::print("compared with {}; ratio: new over old, below 1 is faster\n", path_);
  fmt::print("{:>12} {:>12} {:>7}\n", "old us", "new us", "ratio");
  for (const Json& row : rows) {
    if (row["ratio"].is_null()) continue;
    fmt::print("{:>12.3f} {:>12.3f} {:>7.3f}  {}\n", row["old_us"].get<double>(),
               row["median_us"].get<double>(), row["ratio"].get<double>(), NameOf(row));
  }
  for (const Json& row : rows) {
    if (!row["ratio"].is_null()) continue;
    const bool old = !row["old_us"].is_null();
    fmt::print("{:>12} {:>12}          {}\n",
               old ? fmt::format("{:.3f}", row["old_us"].get<double>()) : "-",
               old ? "-" : fmt::format("{:.3f}", row["median_us"].get<double>()), NameOf(row));
  }
}

bool Comparison::HasRatio(const Json& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const Json& row) { return !row["ratio"].is_null(); });
}

int Comparison::LogSlower(const Json& rows, double percent) {
  int slower = 0;
  for (const Json& row : rows) {
    if (row["ratio"].is_null() || row["ratio"].get<double>() <= 1 + percent / 100) continue;
    ++slower;
    spdlog::error(
        "{}: {:.3f} us, {:.3f} times the {:.3f} of before, more than --tolerance {} allows",
        NameOf(row), row["median_us"].get<double>(), row["ratio"].get<double>(),
        row["old_us"].get<double>(), percent);
  }
  return slower;
}

}  // namespace lariat::tools
