// SPDX-License-Identifier: Apache-2.0
// The safetensors reader on any bytes: no crash, and what an open file promises.
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "lariat/safetensors.h"

namespace lariat::fuzz {
namespace {

void CheckFile(SafetensorsFile& file, std::int64_t size) {
  std::int64_t end = 0;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    Check(tensor.begin == end && tensor.end >= tensor.begin, "tensors follow each other");
    end = tensor.end;
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) {
      Check(extent >= 0, "shapes are not negative");
      elements *= extent;  // the reader has seen to it that this stays below the data's bytes
    }
    Check(elements == tensor.elements, "elements are the shape's product");
    Check(tensor.elements * SafetensorsTypeSize(tensor.type) == tensor.end - tensor.begin,
          "bytes are those of the elements");
    Check(file.Find(tensor.name) != nullptr, "a tensor is found by its name");
  }
  Check(end + 8 <= size, "the data are in the file");
  for (const SafetensorsTensor& tensor : file.tensors()) {
    const Result<std::vector<double>> values = file.ReadAsDouble(tensor.name);
    if (values.ok()) Check(std::ssize(*values) == tensor.elements, "all elements are read");
    const Result<std::vector<std::uint8_t>> bytes = file.Read<std::uint8_t>(tensor.name);
    if (bytes.ok()) Check(std::ssize(*bytes) == tensor.elements, "all bytes are read");
  }
}

}  // namespace
}  // namespace lariat::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  lariat::Result<lariat::SafetensorsFile> file =
      lariat::SafetensorsFile::FromStream(std::make_unique<std::istringstream>(bytes), "fuzz");
  if (file.ok()) {
    lariat::fuzz::CheckFile(*file, static_cast<std::int64_t>(size));
  } else {
    lariat::fuzz::Check(file.status().code() == lariat::Code::kCorruptData,
                        "bad bytes are corrupt");
  }
  // The header's JSON alone, so that mutations need not keep its length right.
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto header = lariat::ParseSafetensorsHeader(text.substr(size > 8 ? 8 : 0), 24);
  lariat::fuzz::Check(header.ok() || !header.status().message().empty(), "a refusal says why");
  return 0;
}
