// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lariat/status.h"

namespace lariat::tools {

// An earlier run's rows beside this one's. A row is the same where op, shape, dtype, backend, hot,
// pdl and threads are.
class Comparison {
 public:
  // path: what --json wrote, or a document with such a list as "rows".
  // Errors: kInvalidArgument: it cannot be read, or is something else.
  static Result<Comparison> Load(const std::string& path);

  // Adds "old_us" and "ratio" (new over old: below 1 is faster) to each row, null where the old run
  // has none. Then those of the same operations that only the old run has, with a null "median_us".
  void Annotate(nlohmann::ordered_json& rows) const;
  // The annotated rows as a table on stdout.
  void Print(const nlohmann::ordered_json& rows) const;
  // Whether a row was compared with one of before.
  static bool HasRatio(const nlohmann::ordered_json& rows);
  // Logs the rows that are slower by more than so many percent; how many they are.
  static int LogSlower(const nlohmann::ordered_json& rows, double percent);

 private:
  std::string path_;
  nlohmann::ordered_json old_;  // a list
};

}  // namespace lariat::tools
