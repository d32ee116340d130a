// SPDX-License-Identifier: Apache-2.0
// A safetensors file: 8 bytes little-endian header size, the header, the tensors' data.
#include "lariat/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <type_traits>

namespace lariat {
namespace {

static_assert(std::endian::native == std::endian::little, "the data are read as they lie");

constexpr std::int64_t kSizeBytes = 8;

double FromHalf(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int fraction = bits & 0x3FF;
  double magnitude = 0;
  if (exponent == 0x1F) {
    magnitude = fraction == 0 ? HUGE_VAL : std::nan("");
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else {
    magnitude = std::ldexp(fraction + 0x400, exponent - 25);
  }
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0 : 1.0);
}

double FromBFloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Whether elements of `type` are read as T.
template <class T>
bool Holds(SafetensorsType type) {
  using enum SafetensorsType;
  if constexpr (std::is_same_v<T, std::uint8_t>) {
    return type == kU8 || type == kBool || type == kF8E4M3 || type == kF8E5M2;
  } else if constexpr (std::is_same_v<T, std::uint16_t>) {
    return type == kU16 || type == kF16 || type == kBF16;
  } else {
    return type == (std::is_same_v<T, std::int8_t>     ? kI8
                    : std::is_same_v<T, std::int16_t>  ? kI16
                    : std::is_same_v<T, std::int32_t>  ? kI32
                    : std::is_same_v<T, std::uint32_t> ? kU32
                    : std::is_same_v<T, std::int64_t>  ? kI64
                    : std::is_same_v<T, std::uint64_t> ? kU64
                    : std::is_same_v<T, float>         ? kF32
                                                       : kF64);
  }
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return InvalidArgument(path + ": there is no such file");
  }
  auto stream = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!stream->is_open()) return InvalidArgument(path + ": the file cannot be opened");
  return FromStream(std::move(stream), path);
}

Result<SafetensorsFile> SafetensorsFile::FromStream(std::unique_ptr<std::istream> stream,
                                                    std::string name) {
  stream->seekg(0, std::ios::end);
  const std::int64_t file_bytes = stream->tellg();
  stream->seekg(0);
  std::array<char, kSizeBytes> size_bytes = {};
  if (!stream->good() || file_bytes < kSizeBytes || !stream->read(size_bytes.data(), kSizeBytes)) {
    return CorruptData(name + ": " + std::to_string(std::max<std::int64_t>(file_bytes, 0)) +
                       " bytes are too few for the header size, which takes 8");
  }
  const auto header_bytes = std::bit_cast<std::uint64_t>(size_bytes);
  const std::int64_t most = std::min(kMaxSafetensorsHeader, file_bytes - kSizeBytes);
  if (header_bytes > static_cast<std::uint64_t>(most)) {
    return CorruptData(name + ": header size is " + std::to_string(header_bytes) +
                       "; allowed: 0.." + std::to_string(most) + " in a file of " +
                       std::to_string(file_bytes) + " bytes");
  }
  std::string json(header_bytes, '\0');
  if (!stream->read(json.data(), static_cast<std::streamsize>(json.size()))) {
    return CorruptData(name + ": the header cannot be read");
  }
  SafetensorsFile file;
  file.data_start_ = kSizeBytes + static_cast<std::int64_t>(header_bytes);
  Result<SafetensorsHeader> header = ParseSafetensorsHeader(json, file_bytes - file.data_start_);
  if (!header.ok()) return CorruptData(name + ": " + header.status().message());
  file.header_ = *std::move(header);
  file.stream_ = std::move(stream);
  file.name_ = std::move(name);
  return file;
}

const SafetensorsTensor* SafetensorsFile::Find(std::string_view name) const {
  for (const SafetensorsTensor& tensor : header_.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Result<const SafetensorsTensor*> SafetensorsFile::Lookup(std::string_view name) const {
  if (const SafetensorsTensor* tensor = Find(name)) return tensor;
  return InvalidArgument(name_ + ": there is no tensor '" + std::string(name) + "'");
}

Status SafetensorsFile::ReadBytes(const SafetensorsTensor& tensor, void* out) {
  stream_->clear();
  stream_->seekg(data_start_ + tensor.begin);
  stream_->read(static_cast<char*>(out), tensor.end - tensor.begin);
  if (stream_->good()) return Status::Ok();
  return CorruptData(name_ + ": tensor '" + tensor.name + "': the data cannot be read");
}

template <class T>
Result<std::vector<T>> SafetensorsFile::Read(std::string_view name) {
  const Result<const SafetensorsTensor*> tensor = Lookup(name);
  if (!tensor.ok()) return tensor.status();
  if (!Holds<T>((*tensor)->type)) {
    return InvalidArgument(name_ + ": tensor '" + std::string(name) + "' has dtype " +
                           std::string(SafetensorsTypeName((*tensor)->type)) +
                           ", which is not the type asked for");
  }
  std::vector<T> values(static_cast<std::size_t>((*tensor)->elements));
  if (Status s = ReadBytes(**tensor, values.data()); !s.ok()) return s;
  return values;
}

template Result<std::vector<std::int8_t>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<std::uint8_t>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<std::int16_t>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<std::uint16_t>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<std::int32_t>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<std::uint32_t>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<std::int64_t>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<std::uint64_t>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<float>> SafetensorsFile::Read(std::string_view);
template Result<std::vector<double>> SafetensorsFile::Read(std::string_view);

Result<std::vector<double>> SafetensorsFile::ReadAsDouble(std::string_view name) {
  const Result<const SafetensorsTensor*> tensor = Lookup(name);
  if (!tensor.ok()) return tensor.status();
  const SafetensorsType type = (*tensor)->type;
  if (type == SafetensorsType::kF64) return Read<double>(name);
  if (type == SafetensorsType::kF32) {
    const Result<std::vector<float>> values = Read<float>(name);
    if (!values.ok()) return values.status();
    return std::vector<double>(values->begin(), values->end());
  }
  if (type != SafetensorsType::kF16 && type != SafetensorsType::kBF16) {
    return InvalidArgument(name_ + ": tensor '" + std::string(name) + "' has dtype " +
                           std::string(SafetensorsTypeName(type)) +
                           "; allowed: F64, F32, F16, BF16");
  }
  const Result<std::vector<std::uint16_t>> bits = Read<std::uint16_t>(name);
  if (!bits.ok()) return bits.status();
  std::vector<double> values;
  values.reserve(bits->size());
  for (const std::uint16_t b : *bits) {
    values.push_back(type == SafetensorsType::kF16 ? FromHalf(b) : FromBFloat(b));
  }
  return values;
}

}  // namespace lariat
