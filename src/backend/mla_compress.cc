// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"
#include "lariat/ops.h"
namespace lariat {
Status MlaCompress(Device&, const MlaCompressParams&, Stream) { return Unsupported("x"); }
Status Warmup(Device&, const MlaCompressParams&, Stream) { return Unsupported("x"); }
Result<std::int64_t> WorkspaceBytes(const Device&, const MlaCompressParams&) { return Unsupported("x"); }
MlaPath MlaCompressPathOf(const Device&, const MlaCompressParams&) { return MlaPath::kGemm; }
Status PackUpProjections(Device&, MlaCompressParams&, void*, Stream) { return Unsupported("x"); }
}  // namespace lariat
