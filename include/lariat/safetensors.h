// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <istream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lariat/status.h"

// Reads the safetensors format. Part of lariat::session.

namespace lariat {

// Element types of the safetensors format. A type that is not listed here is an error, not a
// guess: without its width no size can be checked.
enum class SafetensorsType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};

// As the format spells it: "BOOL", "F8_E4M3", "BF16", "F64", ...
std::string_view SafetensorsTypeName(SafetensorsType type);
std::int64_t SafetensorsTypeSize(SafetensorsType type);  // bytes

// One tensor of a file. Everything has been checked: elements is the product of shape, and
// end - begin is elements times the width of type.
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::int64_t elements = 0;
  std::int64_t begin = 0;  // bytes from the start of the data
  std::int64_t end = 0;
};

// The list of a file's tensors, as the header gives it.
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;  // in order of their data
};

// Header bytes at most; the format's own limit.
constexpr std::int64_t kMaxSafetensorsHeader = 100'000'000;

// Parses the JSON of a header and checks it against the size of the data behind it: field names
// and types, shapes, dtypes, and that the tensors fill the data without hole, overlap or rest.
// Unknown fields and duplicate names are errors. Depth and memory are bounded by the text's size.
// Errors: kCorruptData, naming tensor and field.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, std::int64_t data_bytes);

// A safetensors file, open for reading. The header is read and checked at once; tensors are read
// when asked for, so a file may be larger than memory.
// Threads: externally synchronised (reading moves the stream).
class SafetensorsFile {
 public:
  // Errors: kInvalidArgument (no such file, not a regular file), kCorruptData.
  static Result<SafetensorsFile> Open(const std::string& path);

  // Reads from a stream that can seek. `name` stands for the file in messages.
  // Errors: kCorruptData.
  static Result<SafetensorsFile> FromStream(std::unique_ptr<std::istream> stream, std::string name);

  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::vector<SafetensorsTensor>& tensors() const { return header_.tensors; }
  const SafetensorsTensor* Find(std::string_view name) const;  // null: there is none

  // The elements of a tensor, row-major. T must be the C++ type of the tensor's type: bool as
  // std::uint8_t, integers as std::intN_t or std::uintN_t, F32 as float, F64 as double, and the
  // bits of F16 and BF16 as std::uint16_t, of F8_* as std::uint8_t.
  // Errors: kInvalidArgument (no such tensor, another type), kCorruptData (the file got shorter).
  template <class T>
  Result<std::vector<T>> Read(std::string_view name);

  // The elements of a tensor of F64, F32, F16 or BF16, each converted exactly.
  // Errors: as Read.
  Result<std::vector<double>> ReadAsDouble(std::string_view name);

 private:
  SafetensorsFile() = default;
  Result<const SafetensorsTensor*> Lookup(std::string_view name) const;
  Status ReadBytes(const SafetensorsTensor& tensor, void* out);

  std::unique_ptr<std::istream> stream_;
  std::string name_;
  std::int64_t data_start_ = 0;  // bytes from the start of the file
  SafetensorsHeader header_;
};

}  // namespace lariat
