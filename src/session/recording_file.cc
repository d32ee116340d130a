// SPDX-License-Identifier: Apache-2.0
#include "session/recording_file.h"

#include <charconv>

namespace lariat::session {
namespace {

constexpr std::int64_t kMaxCount = (std::int64_t{1} << 31) - 1;  // positions are int32

}  // namespace

std::string ShapeText(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

bool RecordingFile::IsF32(const std::string& name) const {
  const SafetensorsTensor* const tensor = file_.Find(name);
  return tensor != nullptr && tensor->type == SafetensorsType::kF32;
}

Status RecordingFile::ReadCount(const std::string& name, std::int64_t least,
                                std::int64_t& value) const {
  const std::string allowed =
      "; expected a whole number from " + std::to_string(least) + " to 2^31 - 1";
  const auto found = file_.metadata().find(name);
  if (found == file_.metadata().end()) return Bad("metadata " + name + " is not there" + allowed);
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least ||
      value > kMaxCount) {
    return Bad("metadata " + name + " = \"" + text.substr(0, 40) + "\"" + allowed);
  }
  return Status::Ok();
}

Status RecordingFile::Check(const SafetensorsTensor& tensor, const Shape& expected,
                            const std::string& meaning) const {
  if (tensor.shape != expected) {
    return Bad("tensor " + tensor.name + " has shape " + ShapeText(tensor.shape) + "; expected " +
               ShapeText(expected) + ", " + meaning);
  }
  if (tensor.type != SafetensorsType::kF32 && tensor.type != SafetensorsType::kF64) {
    return Bad("tensor " + tensor.name + " has dtype " +
               std::string(SafetensorsTypeName(tensor.type)) + "; expected F32 or F64");
  }
  return Status::Ok();
}

Status RecordingFile::Read(const std::string& name, const Shape& expected,
                           const std::string& meaning, std::vector<double>& values) {
  const Status status = Check(*file_.Find(name), expected, meaning);
  if (!status.ok()) return status;
  Result<std::vector<double>> read = file_.ReadAsDouble(name);
  if (!read.ok()) return read.status();
  values = *std::move(read);
  return Status::Ok();
}

}  // namespace lariat::session
