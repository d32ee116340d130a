// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lariat/lariat.h"
#include "lariat/status.h"

// Structs of any version: what a caller's struct has more or less than this library's.

namespace lariat::c_api {

// A struct's size in the first version of the ABI that had it: what callers must have at the least.
// A struct that grows gets a specialisation with its old size.
template <class T>
inline constexpr std::uint32_t kFirstSize = sizeof(T);
template <>
inline constexpr std::uint32_t kFirstSize<lariat_cache_config> = 152;
template <>
inline constexpr std::uint32_t kFirstSize<lariat_step_view> = 64;
template <>
inline constexpr std::uint32_t kFirstSize<lariat_footprint> = 88;
template <>
inline constexpr std::uint32_t kFirstSize<lariat_stats> = 200;
template <>
inline constexpr std::uint32_t kFirstSize<lariat_mla_compress_inputs> = 136;

// The name of an argument, or of an element of one that is an array.
struct Name {
  std::string_view argument;
  std::int64_t index = -1;
  std::string ToString() const;
};

struct Sizes {
  std::uint32_t first = 0;  // kFirstSize
  std::uint32_t known = 0;  // sizeof, in this library
  std::uint32_t align = 0;
};
template <class T>
inline constexpr Sizes kSizes = {kFirstSize<T>, sizeof(T), alignof(T)};

// Errors: kInvalidArgument (null, or a size that no version has).
Status CheckStruct(const Name& name, const void* from, const Sizes& sizes);
// Copies as much as both know; the rest of `to` becomes 0.
// Errors: as CheckStruct; kUnsupported (a field is set that this library does not know).
Status ReadStruct(const Name& name, const void* from, void* to, const Sizes& sizes);
// Copies as much as both know, all but the size; the rest of `to` becomes 0.
void FillStruct(const void* from, void* to, const Sizes& sizes) noexcept;

template <class T>
Status Check(std::string_view name, const T* out) {
  return CheckStruct({name}, out, kSizes<T>);
}
template <class T>
Status Read(std::string_view name, const T* from, T& to) {
  return ReadStruct({name}, from, &to, kSizes<T>);
}
// REQUIRES: Check passed.
template <class T>
void Fill(T* out, const T& value) noexcept {
  FillStruct(&value, out, kSizes<T>);
}

// Errors: kInvalidArgument (a negative count, or elements at a null pointer).
Status CheckArray(std::string_view name, const void* data, std::int64_t count);

template <class T>
Result<std::span<const T>> Span(std::string_view name, const T* data, std::int64_t count) {
  if (Status status = CheckArray(name, data, count); !status.ok()) return status;
  return std::span<const T>(data, static_cast<std::size_t>(count));
}

// each(struct): for every element of an array of structs, until one is not ok.
template <class T, class F>
Status ForEach(std::string_view name, const T* items, std::int64_t count, F&& each) {
  Status status = CheckArray(name, items, count);
  const auto* bytes = reinterpret_cast<const std::byte*>(items);
  for (std::int64_t i = 0; status.ok() && i < count; ++i) {
    T item;
    status = ReadStruct({name, i}, bytes, &item, kSizes<T>);
    if (status.ok() && item.struct_size != items->struct_size) {
      status = InvalidArgument(
          Name{name, i}.ToString().append(".struct_size differs from that of the first element"));
    }
    if (status.ok()) status = each(item);
    bytes += items->struct_size;
  }
  return status;
}

// Errors: kUnsupported, of a field that must be 0.
Status CheckReserved(std::string_view name, std::int32_t value);

Status NoSuchChoice(std::string_view field, std::int32_t value, std::size_t count);

// The value that stands at place `value` of the choices.
template <class E, std::size_t N>
Status Choose(std::string_view field, std::int32_t value, const E (&choices)[N], E& to) {
  if (value < 0 || static_cast<std::size_t>(value) >= N) return NoSuchChoice(field, value, N);
  to = choices[value];
  return Status::Ok();
}

}  // namespace lariat::c_api
