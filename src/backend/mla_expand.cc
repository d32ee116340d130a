// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"
#include "lariat/ops.h"
namespace lariat {
Status MlaExpand(Device&, const MlaExpandParams&, Stream) { return Unsupported("x"); }
Status Warmup(Device&, const MlaExpandParams&, Stream) { return Unsupported("x"); }
Result<std::int64_t> WorkspaceBytes(const Device&, const MlaExpandParams&) { return Unsupported("x"); }
Result<AbsorbedProjections> AbsorbViews(const MlaExpandParams&) { return Unsupported("x"); }
}  // namespace lariat
