// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "commands.h"

namespace lariat::tools {

Result<BackendKind> ChooseBackend(const std::string& option) {
  std::string name = option;
  std::string source = "--backend";
  const char* override_name = std::getenv("LARIAT_BACKEND");
  if (name == "auto" && override_name != nullptr && *override_name != '\0') {
    name = override_name;
    source = "LARIAT_BACKEND";
  }
  for (const BackendKind kind :
       {BackendKind::kAuto, BackendKind::kCpu, BackendKind::kCuda, BackendKind::kNull}) {
    if (name == BackendName(kind)) return kind;
  }
  return InvalidArgument(source + " = " + name + "; allowed: auto, cpu, cuda, null");
}

// CLI11 has sizes too, but loses digits of a floating-point number on the way to the option.
Result<std::int64_t> ParseSize(const std::string& text) {
  static constexpr std::array<std::pair<const char*, double>, 10> kUnits = {{
      {"", 1.0},
      {"b", 1.0},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
      {"kib", 1024.0},
      {"mib", 1048576.0},
      {"gib", 1073741824.0},
      {"tib", 1099511627776.0},
  }};
  const Status bad = InvalidArgument(
      text + "; allowed: 1 byte to 8192TiB, as in 8GiB, 1.5GiB, 512MiB, 80GB or 1e9");
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || !std::isfinite(number)) return bad;
  std::string unit(rest, end);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    const double bytes = number * factor;
    // Beyond 2^53 a double does not hold every whole number, and no machine has as much.
    if (bytes < 1 || bytes > 9007199254740992.0) return bad;
    // 0.29GB is 290000000 bytes, though the product may be two roundings below.
    const double nearest = std::round(bytes);
    const bool whole = std::abs(bytes - nearest) <= bytes * 0x1p-52;
    return static_cast<std::int64_t>(whole ? nearest : std::floor(bytes));
  }
  return bad;
}

Status CheckOutput(const std::string& flag, const std::string& path) {
  if (path.empty() || path == "-") return Status::Ok();
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument(flag + " = " + path + ": cannot be written: " + why);
  };
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return refuse("it is a directory");
  std::string at = path;
  int wanted = W_OK;
  if (!fs::exists(path, ignored)) {
    if (path.back() == '/') return refuse("it is no file's name");
    const fs::path folder = fs::path(path).parent_path();
    at = folder.empty() ? "." : folder.string();
    wanted = W_OK | X_OK;
    if (fs::exists(at, ignored) && !fs::is_directory(at, ignored)) {
      return refuse(at + " is not a directory");
    }
  }
  if (access(at.c_str(), wanted) == 0) return Status::Ok();
  return refuse(std::generic_category().message(errno));
}

Status WriteText(const std::string& path, const std::string& text) {
  const Status failed =
      InvalidArgument((path == "-" ? "standard output" : path) + ": cannot be written");
  std::FILE* const file = path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return failed;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const bool closed = file == stdout || std::fclose(file) == 0;
  return written && closed ? Status::Ok() : failed;
}

}  // namespace lariat::tools
