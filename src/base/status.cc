// SPDX-License-Identifier: Apache-2.0
#include "lariat/status.h"

namespace lariat {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "Ok";
    case Code::kInvalidArgument: return "InvalidArgument";
    case Code::kUnsupported: return "Unsupported";
    case Code::kResourceExhausted: return "ResourceExhausted";
    case Code::kNeverFits: return "NeverFits";
    case Code::kNotReady: return "NotReady";
    case Code::kCorruptData: return "CorruptData";
    case Code::kDeviceError: return "DeviceError";
  }
  return "Unknown";
}

namespace {

const std::string kEmpty;
const std::string kOutOfMemory = "out of memory";

}  // namespace

Status Status::OutOfMemory() noexcept {
  Status status;
  status.code_ = Code::kResourceExhausted;
  status.message_ = {std::shared_ptr<const std::string>(), &kOutOfMemory};  // owned by nobody
  return status;
}

const std::string& Status::message() const { return message_ == nullptr ? kEmpty : *message_; }

std::string Status::ToString() const {
  std::string text(CodeName(code_));
  if (!message().empty()) text.append(": ").append(message());
  return text;
}

}  // namespace lariat
