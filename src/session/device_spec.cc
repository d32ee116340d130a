// SPDX-License-Identifier: Apache-2.0
// Device files: JSON whose every number says where it comes from.
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lariat/cost_model.h"
#include "session/device_spec_embedded.h"

namespace lariat {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestFile = std::size_t{1} << 20;
constexpr double kGreatest = 1e30;  // no figure comes near

enum class Range : std::uint8_t { kShare, kPositive, kNotNegative };

// One number of the file: where it stands, where it goes, what it may be.
struct Entry {
  const char* group;  // null: at the top
  const char* key;
  Figure* figure;
  Range range;
};

std::array<Entry, 17> Entries(DeviceSpec& spec) {
  return {{
      {nullptr, "flops", &spec.flops, Range::kPositive},
      {nullptr, "bytes_per_s", &spec.bytes_per_s, Range::kPositive},
      {nullptr, "memory_bytes", &spec.memory_bytes, Range::kPositive},
      {"gemm", "e_f", &spec.gemm.flops, Range::kShare},
      {"gemm", "e_b", &spec.gemm.bytes, Range::kShare},
      {"moe", "e_f", &spec.moe.flops, Range::kShare},
      {"moe", "e_b", &spec.moe.bytes, Range::kShare},
      {"prefill_attention", "e_f", &spec.prefill_attention.flops, Range::kShare},
      {"prefill_attention", "e_b", &spec.prefill_attention.bytes, Range::kShare},
      {"decode_attention", "e_f", &spec.decode_attention.flops, Range::kShare},
      {"decode_attention", "e_b", &spec.decode_attention.bytes, Range::kShare},
      {"append", "e_b", &spec.append_bytes, Range::kShare},
      {nullptr, "step_overhead_s", &spec.step_overhead_s, Range::kNotNegative},
      {nullptr, "kernel_overhead_s", &spec.kernel_overhead_s, Range::kNotNegative},
      {nullptr, "kernels_per_layer", &spec.kernels_per_layer, Range::kNotNegative},
      {nullptr, "host_to_device_bytes_per_s", &spec.host_to_device_bytes_per_s, Range::kPositive},
      {nullptr, "device_to_host_bytes_per_s", &spec.device_to_host_bytes_per_s, Range::kPositive},
  }};
}

std::string Text(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
}

// Reads a file's JSON; every error names the file and the key.
class DeviceReader {
 public:
  DeviceReader(std::string file, const Json& json) : file_(std::move(file)), json_(json) {}

  Result<DeviceSpec> Read() const {
    if (!json_.is_object()) return Refuse("file", "is not a JSON object");
    DeviceSpec spec;
    const auto name = json_.find("name");
    if (name == json_.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) {
      return Refuse("name", "is missing or empty; allowed: a text");
    }
    spec.name = name->get<std::string>();
    const auto entries = Entries(spec);
    if (Status s = CheckKeys(entries); !s.ok()) return s;
    for (const Entry& entry : entries) {
      if (Status s = ReadFigure(entry); !s.ok()) return s;
    }
    return spec;
  }

 private:
  Status Refuse(const std::string& key, const std::string& problem) const {
    return InvalidArgument(file_ + ": " + key + " " + problem);
  }

  // A key that is misspelt must not be a default in disguise.
  template <class Entries>
  Status CheckKeys(const Entries& entries) const {
    for (const auto& [key, value] : json_.items()) {
      bool known = key == "name" || key == "comment";
      for (const Entry& entry : entries) {
        known = known || key == (entry.group != nullptr ? entry.group : entry.key);
      }
      if (!known) return Refuse(key, "is not known");
      if (!value.is_object()) continue;
      for (const auto& [inner, unused] : value.items()) {
        bool inner_known = inner == "value" || inner == "source";
        for (const Entry& entry : entries) {
          if (entry.group == nullptr || key != entry.group) continue;
          if (inner == entry.key) inner_known = true;
        }
        if (!inner_known) return Refuse(key + "." + inner, "is not known");
      }
    }
    return Status::Ok();
  }

  Status ReadFigure(const Entry& entry) const {
    const Json* at = &json_;
    std::string path;
    if (entry.group != nullptr) {
      path = std::string(entry.group) + ".";
      at = Find(*at, entry.group);
    }
    path += entry.key;
    if (at != nullptr) at = Find(*at, entry.key);
    if (at == nullptr) return Refuse(path, "is missing");

    const Json* value = Find(*at, "value");
    if (value == nullptr || !value->is_number()) {
      return Refuse(path + ".value", "is missing or no number");
    }
    const Json* source = Find(*at, "source");
    if (source == nullptr || !source->is_string() ||
        source->get_ref<const std::string&>().empty()) {
      return Refuse(path + ".source",
                    "is missing; allowed: a text that says where the number is from");
    }
    entry.figure->value = value->get<double>();
    entry.figure->source = source->get<std::string>();
    const double least =
        entry.range == Range::kNotNegative ? 0.0 : std::numeric_limits<double>::min();
    const double most = entry.range == Range::kShare ? 1.0 : kGreatest;
    if (entry.figure->value >= least && entry.figure->value <= most) return Status::Ok();
    return Refuse(path + ".value", "is " + Text(entry.figure->value) + "; allowed: " +
                                       (least == 0.0 ? "0.." : "above 0, up to ") + Text(most));
  }

  static const Json* Find(const Json& in, const char* key) {
    if (!in.is_object()) return nullptr;
    const auto found = in.find(key);
    return found == in.end() ? nullptr : &*found;
  }

  const std::string file_;
  const Json& json_;
};

Result<DeviceSpec> ParseDevice(const std::string& file, std::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument(file + ": is not JSON");
  return DeviceReader(file, json).Read();
}

Result<std::string> ReadFile(const std::string& path) {
  std::error_code code;
  const bool directory = std::filesystem::is_directory(path, code);
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (directory || !in) {
    std::string names;
    for (const std::string& name : DeviceNames()) names += (names.empty() ? "" : ", ") + name;
    const std::string why =
        directory ? "is a directory" : std::generic_category().message(errno != 0 ? errno : ENOENT);
    return InvalidArgument("device '" + path + "': " + why + "; allowed: " + names +
                           ", or the path of a device file");
  }
  std::string text(kLongestFile + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) return InvalidArgument(path + ": cannot be read");
  if (text.size() > kLongestFile) return InvalidArgument(path + ": is over 1 MiB long");
  return text;
}

}  // namespace

Result<DeviceSpec> LoadDevice(const std::string& name_or_path) {
  for (const session::EmbeddedDevice& device : session::EmbeddedDevices()) {
    if (device.name == name_or_path) return ParseDevice(name_or_path + ".json", device.json);
  }
  Result<std::string> text = ReadFile(name_or_path);
  if (!text.ok()) return text.status();
  return ParseDevice(name_or_path, *text);
}

std::vector<std::string> DeviceNames() {
  std::vector<std::string> names;
  for (const session::EmbeddedDevice& device : session::EmbeddedDevices()) {
    names.emplace_back(device.name);
  }
  return names;
}

}  // namespace lariat
