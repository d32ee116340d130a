// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef LARIAT_WITH_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace lariat {

// While it lives, a range of NVTX's domain "lariat" on this thread: what is put on a stream
// meanwhile is shown under its name by a profiler. Nothing where the library was built without
// NVTX.
//   name: a literal
class DeviceRange {
 public:
#ifdef LARIAT_WITH_NVTX
  explicit DeviceRange(const char* name) noexcept {
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    nvtxDomainRangePushEx(Domain(), &attributes);
  }
  ~DeviceRange() { nvtxDomainRangePop(Domain()); }
#else
  explicit DeviceRange(const char*) noexcept {}
  ~DeviceRange() {}
#endif
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;

 private:
#ifdef LARIAT_WITH_NVTX
  static nvtxDomainHandle_t Domain() noexcept {
    static const nvtxDomainHandle_t domain = nvtxDomainCreateA("lariat");
    return domain;
  }
#endif
};

}  // namespace lariat
