// SPDX-License-Identifier: Apache-2.0
#include "c_api/structs.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace lariat::c_api {

namespace {

// No struct of any version is larger; what is, is no size.
constexpr std::uint32_t kLargestSize = 4096;

std::uint32_t SizeOf(const void* from) {
  std::uint32_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  return size;
}

}  // namespace

std::string Name::ToString() const {
  std::ostringstream text;
  text << argument;
  if (index >= 0) text << '[' << index << ']';
  return text.str();
}

Status CheckStruct(const Name& name, const void* from, const Sizes& sizes) {
  if (from == nullptr) return InvalidArgument(name.ToString().append(": null"));
  const std::uint32_t size = SizeOf(from);
  if (size >= sizes.first && size <= kLargestSize && size % sizes.align == 0) return Status::Ok();
  std::ostringstream text;
  text << name.ToString() << ".struct_size is " << size << "; set it to sizeof the struct, here "
       << sizes.known;
  return InvalidArgument(text.str());
}

Status ReadStruct(const Name& name, const void* from, void* to, const Sizes& sizes) {
  if (Status status = CheckStruct(name, from, sizes); !status.ok()) return status;
  const std::uint32_t size = SizeOf(from);
  const auto* bytes = static_cast<const unsigned char*>(from);
  for (std::uint32_t i = sizes.known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    std::ostringstream text;
    text << name.ToString() << ": byte " << i << " is set, of a field that this version of Lariat, "
         << "whose struct has " << sizes.known << " bytes, does not know";
    return Unsupported(text.str());
  }
  const std::uint32_t both = std::min(size, sizes.known);
  std::memcpy(to, from, both);
  std::memset(static_cast<unsigned char*>(to) + both, 0, sizes.known - both);
  return Status::Ok();
}

void FillStruct(const void* from, void* to, const Sizes& sizes) noexcept {
  const std::uint32_t size = SizeOf(to);
  const std::uint32_t both = std::min(size, sizes.known);
  std::memcpy(to, from, both);
  std::memset(static_cast<unsigned char*>(to) + both, 0, size - both);
  std::memcpy(to, &size, sizeof(size));
}

Status CheckArray(std::string_view name, const void* data, std::int64_t count) {
  if (count >= 0 && (data != nullptr || count == 0)) return Status::Ok();
  std::ostringstream text;
  if (count < 0) {
    text << name << ": " << count << " elements; allowed are 0 and more";
  } else {
    text << name << ": null, of " << count << " elements";
  }
  return InvalidArgument(text.str());
}

Status CheckReserved(std::string_view name, std::int32_t value) {
  if (value == 0) return Status::Ok();
  std::ostringstream text;
  text << name << ".reserved is " << value << "; allowed is 0";
  return Unsupported(text.str());
}

Status NoSuchChoice(std::string_view field, std::int32_t value, std::size_t count) {
  std::ostringstream text;
  text << field << " is " << value << "; allowed are 0 to " << count - 1;
  return InvalidArgument(text.str());
}

}  // namespace lariat::c_api
