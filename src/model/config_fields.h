// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lariat/status.h"
#include "model/config_json.h"

namespace lariat::model {

// What reading one config came to: the first error, and every warning. After an error readers go on
// with whatever they get; the config is thrown away.
class ConfigReport {
 public:
  explicit ConfigReport(std::string file) : file_(std::move(file)) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

  // "<file>: <path>: <what>; <allowed>". The first one stays.
  void Fail(const std::string& path, const std::string& what, const std::string& allowed);
  // "<path>: <what>", once each.
  void Warn(const std::string& path, const std::string& what);

 private:
  const std::string file_;
  Status status_;
  std::vector<std::string> warnings_;
};

// Names of one fact, the first one preferred.
using Names = std::span<const std::string_view>;

// What a number may be.
enum class Range : std::uint8_t { kPositive, kAtLeastOne, kNotNegative, kShare };

// The members of one object of a config, asked for by name. A fact under several names is the first
// that is there and not null; another one that differs gets a warning. Wrong types and ranges are
// reported and read as absent.
class Fields {
 public:
  // object: outlives this. path: of the object, "" at the top.
  Fields(const Json& object, std::string path, ConfigReport& report)
      : object_(&object), path_(std::move(path)), report_(&report) {}

  const std::string& Self() const { return path_; }
  std::string Path(std::string_view name) const;
  ConfigReport& report() const { return *report_; }
  const Json& json() const { return *object_; }
  // Warns that the default of the family stands for an absent field.
  void Assumed(std::string_view name, std::int64_t value) const;

  // There at all, if only as null.
  bool Has(std::string_view name) const { return object_->find(name) != object_->end(); }
  // There, and not null.
  const Json* Find(std::string_view name) const;
  // The name of `names` that counts; empty: none.
  std::string_view NameOf(Names names) const;

  std::optional<std::int64_t> Int(Names names, std::int64_t low, std::int64_t high) const;
  // As Int; absent and null are errors.
  std::int64_t RequiredInt(Names names, std::int64_t low, std::int64_t high,
                           const std::string& why = "") const;
  std::optional<double> Number(Names names, Range range) const;
  std::optional<bool> Bool(std::string_view name) const;
  std::optional<std::string> Text(std::string_view name) const;
  // Of integers low..high; of numbers above 0. `size`: entries it must have, -1: any number.
  std::optional<std::vector<std::int64_t>> Ints(std::string_view name, std::int64_t low,
                                                std::int64_t high) const;
  std::optional<std::vector<double>> PositiveNumbers(std::string_view name) const;
  std::optional<std::vector<std::string>> Texts(std::string_view name) const;

 private:
  const Json* Find(Names names, std::string& path) const;
  std::optional<std::int64_t> ToInt(const Json& value, const std::string& path, std::int64_t low,
                                    std::int64_t high) const;
  std::optional<double> ToNumber(const Json& value, const std::string& path, Range range) const;
  const Json* FindArray(std::string_view name) const;

  const Json* object_;
  std::string path_;
  ConfigReport* report_;
};

}  // namespace lariat::model
