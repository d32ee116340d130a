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

std::string Status::ToString() const {
  std::string text(CodeName(code_));
  if (!message_.empty()) text.append(": ").append(message_);
  return text;
}

}  // namespace lariat
