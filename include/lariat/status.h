// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lariat {

// What the caller should do next decides the code; the message says what happened and names the
// field, its value and what is allowed.
enum class Code {
  kOk = 0,
  kInvalidArgument,    // the call is wrong: fix the caller, do not retry
  kUnsupported,        // valid, but this build or version does not do it
  kResourceExhausted,  // no room now: commit, close or preempt something, then retry
  kNeverFits,          // no room even in an empty cache: refuse the request
  kNotReady,           // legal later: finish the step or plan that is in the way, then retry
  kCorruptData,        // the data cannot be trusted: close the sequence, or reject the file
  kDeviceError,        // the device or driver failed: the cache is unusable
};

// The code's name as written above, without the k: "InvalidArgument".
std::string_view CodeName(Code code);

// The outcome of an operation. Thread rules: as a value type. An ok Status holds no memory, and
// copies share the message, so that handing one on cannot fail.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::make_shared<const std::string>(std::move(message))) {}
  static Status Ok() { return {}; }
  // kResourceExhausted, "out of memory": can be made where there is none.
  static Status OutOfMemory() noexcept;

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const;
  // "InvalidArgument: message", or "Ok".
  std::string ToString() const;

 private:
  Code code_ = Code::kOk;
  std::shared_ptr<const std::string> message_;  // null: empty
};

// A Status of each code.
inline Status InvalidArgument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}
inline Status Unsupported(std::string message) { return {Code::kUnsupported, std::move(message)}; }
inline Status ResourceExhausted(std::string message) {
  return {Code::kResourceExhausted, std::move(message)};
}
inline Status NeverFits(std::string message) { return {Code::kNeverFits, std::move(message)}; }
inline Status NotReady(std::string message) { return {Code::kNotReady, std::move(message)}; }
inline Status CorruptData(std::string message) { return {Code::kCorruptData, std::move(message)}; }
inline Status DeviceError(std::string message) { return {Code::kDeviceError, std::move(message)}; }

// Either a T or the Status that explains why there is none.
// REQUIRES: a Result made from a Status is made from one that is not ok; the value is read only
//   when ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}        // NOLINT: implicit by design
  Result(Status error) : status_(std::move(error)) {}  // NOLINT: implicit by design

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace lariat
