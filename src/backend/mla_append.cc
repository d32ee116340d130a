// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"
#include "lariat/ops.h"
namespace lariat {
Status MlaAppend(Device&, const MlaAppendParams&, Stream) { return Unsupported("x"); }
Status Warmup(Device&, const MlaAppendParams&, Stream) { return Unsupported("x"); }
Result<std::int64_t> WorkspaceBytes(const Device&, const MlaAppendParams&) { return Unsupported("x"); }
}  // namespace lariat
