// SPDX-License-Identifier: Apache-2.0
// A safetensors file taken apart, changed and written again.
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/command.h"

namespace lariat::test {

struct EditedTensor {
  std::string dtype = "F32";
  std::vector<std::int64_t> shape;
  std::string bytes;

  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size() / 4); }
  float Get(std::int64_t i) const {
    float value = 0;
    std::memcpy(&value, bytes.data() + 4 * i, 4);
    return value;
  }
  void Set(std::int64_t i, float value) { std::memcpy(bytes.data() + 4 * i, &value, 4); }
  void Negate(std::int64_t i) { Set(i, -Get(i)); }
};

struct EditedFile {
  std::map<std::string, std::string> metadata;
  std::map<std::string, EditedTensor> tensors;

  EditedTensor& at(const std::string& name) { return tensors.at(name); }

  static EditedFile Load(const std::string& path) {
    const std::string file = ReadFile(path);
    std::uint64_t size = 0;
    REQUIRE(file.size() > sizeof size);
    std::memcpy(&size, file.data(), sizeof size);
    const auto header = nlohmann::json::parse(file.substr(8, size));
    EditedFile edited;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        edited.metadata = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      const std::uint64_t begin = entry.at("data_offsets")[0];
      const std::uint64_t end = entry.at("data_offsets")[1];
      edited.tensors[name] = {entry.at("dtype"), entry.at("shape"),
                              file.substr(8 + size + begin, end - begin)};
    }
    return edited;
  }

  void Write(const std::string& path) const {
    nlohmann::json header;
    std::string data;
    header["__metadata__"] = metadata;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    const std::uint64_t size = text.size();
    std::string start(sizeof size, '\0');
    std::memcpy(start.data(), &size, sizeof size);
    std::ofstream(path, std::ios::binary) << start << text << data;
  }
};

}  // namespace lariat::test
