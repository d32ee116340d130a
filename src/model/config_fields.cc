// SPDX-License-Identifier: Apache-2.0
#include "model/config_fields.h"

#include <algorithm>
#include <cmath>

namespace lariat::model {
namespace {

constexpr std::size_t kMaxWarnings = 64;

std::string AllowedInt(std::int64_t low) { return "must be an integer >= " + std::to_string(low); }

std::string_view AllowedNumber(Range range) {
  switch (range) {
    case Range::kPositive: return "must be a finite number > 0";
    case Range::kAtLeastOne: return "must be a finite number >= 1";
    case Range::kNotNegative: return "must be a finite number >= 0";
    case Range::kShare: return "must be > 0 and <= 1";
  }
  return "";
}

bool IsIn(double value, Range range) {
  if (!std::isfinite(value)) return false;
  switch (range) {
    case Range::kPositive: return value > 0;
    case Range::kAtLeastOne: return value >= 1;
    case Range::kNotNegative: return value >= 0;
    case Range::kShare: return value > 0 && value <= 1;
  }
  return false;
}

}  // namespace

void ConfigReport::Fail(const std::string& path, const std::string& what,
                        const std::string& allowed) {
  if (status_.ok()) status_ = InvalidArgument(file_ + ": " + path + ": " + what + "; " + allowed);
}

void ConfigReport::Warn(const std::string& path, const std::string& what) {
  std::string warning = path + ": " + what;
  if (warnings_.size() >= kMaxWarnings) return;
  if (std::find(warnings_.begin(), warnings_.end(), warning) != warnings_.end()) return;
  warnings_.push_back(std::move(warning));
}

std::string Fields::Path(std::string_view name) const {
  return (path_.empty() ? "" : path_ + ".") + Clean(name, 80);
}

void Fields::Assumed(std::string_view name, std::int64_t value) const {
  report_->Warn(Path(name),
                "missing; " + std::to_string(value) + ", the default of this model_type, is taken");
}

const Json* Fields::Find(std::string_view name) const {
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::string_view Fields::NameOf(Names names) const {
  for (const std::string_view name : names) {
    if (Find(name) != nullptr) return name;
  }
  return {};
}

const Json* Fields::Find(Names names, std::string& path) const {
  const Json* value = nullptr;
  path = Path(names.front());
  for (const std::string_view name : names) {
    const Json* const other = Find(name);
    if (other == nullptr) continue;
    if (value == nullptr) {
      value = other;
      path = Path(name);
    } else if (*other != *value) {
      report_->Warn(Path(name), Describe(*other) + " differs from " + path + ", " +
                                    Describe(*value) + ", which is used");
    }
  }
  return value;
}

std::optional<std::int64_t> Fields::ToInt(const Json& value, const std::string& path,
                                          std::int64_t low, std::int64_t high) const {
  const std::string what = Describe(value);
  if (!value.is_number()) {
    report_->Fail(path, what, "must be an integer");
    return {};
  }
  // As a double first: it compares with any number of the file.
  const double number = value.get<double>();
  if (number != std::floor(number)) {
    report_->Fail(path, what, "must be an integer");
    return {};
  }
  if (number < static_cast<double>(low)) {
    report_->Fail(path, what, AllowedInt(low));
    return {};
  }
  // Limits are far below 2^53, so both are exact here.
  if (number > static_cast<double>(high)) {
    report_->Fail(path, what, "must be <= " + std::to_string(high));
    return {};
  }
  return static_cast<std::int64_t>(number);
}

std::optional<double> Fields::ToNumber(const Json& value, const std::string& path,
                                       Range range) const {
  if (value.is_number() && IsIn(value.get<double>(), range)) return value.get<double>();
  const bool whole = value.is_number() && value.get<double>() == std::floor(value.get<double>()) &&
                     std::fabs(value.get<double>()) < 1e15;
  const std::string what =
      whole ? std::to_string(static_cast<std::int64_t>(value.get<double>())) : Describe(value);
  report_->Fail(path, what, std::string(AllowedNumber(range)));
  return {};
}

std::optional<std::int64_t> Fields::Int(Names names, std::int64_t low, std::int64_t high) const {
  std::string path;
  const Json* const value = Find(names, path);
  if (value == nullptr) return {};
  return ToInt(*value, path, low, high);
}

std::int64_t Fields::RequiredInt(Names names, std::int64_t low, std::int64_t high,
                                 const std::string& why) const {
  const bool given = !NameOf(names).empty();
  const std::optional<std::int64_t> value = Int(names, low, high);
  if (!given) {
    std::string_view name = names.front();
    for (const std::string_view other : names) {
      if (Has(other)) name = other;
    }
    report_->Fail(Path(name), Has(name) ? "null" : "missing", why.empty() ? AllowedInt(low) : why);
  }
  return value.value_or(low);
}

std::optional<double> Fields::Number(Names names, Range range) const {
  std::string path;
  const Json* const value = Find(names, path);
  if (value == nullptr) return {};
  return ToNumber(*value, path, range);
}

std::optional<bool> Fields::Bool(std::string_view name) const {
  const Json* const value = Find(name);
  if (value == nullptr) return {};
  if (value->is_boolean()) return value->get<bool>();
  report_->Fail(Path(name), Describe(*value), "must be true or false");
  return {};
}

std::optional<std::string> Fields::Text(std::string_view name) const {
  const Json* const value = Find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  report_->Fail(Path(name), Describe(*value), "must be a string");
  return {};
}

const Json* Fields::FindArray(std::string_view name) const {
  const Json* const value = Find(name);
  if (value == nullptr || value->is_array()) return value;
  report_->Fail(Path(name), Describe(*value), "must be a list");
  return nullptr;
}

std::optional<std::vector<std::int64_t>> Fields::Ints(std::string_view name, std::int64_t low,
                                                      std::int64_t high) const {
  const Json* const array = FindArray(name);
  if (array == nullptr) return {};
  std::vector<std::int64_t> values;
  for (const Json& entry : *array) {
    const std::string path = Path(name) + "[" + std::to_string(values.size()) + "]";
    values.push_back(ToInt(entry, path, low, high).value_or(low));
  }
  return values;
}

std::optional<std::vector<double>> Fields::PositiveNumbers(std::string_view name) const {
  const Json* const array = FindArray(name);
  if (array == nullptr) return {};
  std::vector<double> values;
  for (const Json& entry : *array) {
    const std::string path = Path(name) + "[" + std::to_string(values.size()) + "]";
    values.push_back(ToNumber(entry, path, Range::kPositive).value_or(1.0));
  }
  return values;
}

std::optional<std::vector<std::string>> Fields::Texts(std::string_view name) const {
  const Json* const array = FindArray(name);
  if (array == nullptr) return {};
  std::vector<std::string> values;
  for (const Json& entry : *array) {
    if (!entry.is_string()) {
      report_->Fail(Path(name) + "[" + std::to_string(values.size()) + "]", Describe(entry),
                    "must be a string");
    }
    values.push_back(entry.is_string() ? entry.get<std::string>() : "");
  }
  return values;
}

}  // namespace lariat::model
