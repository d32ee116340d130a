// SPDX-License-Identifier: Apache-2.0
#include "bench_ops.h"

namespace lariat::tools {
namespace {

// DeepSeek-V3's latent and up-projections.
const std::string kDeepSeek =
    "model_dim=7168,rank=512,heads=128,k_dim=128,v_dim=128,dtype=bf16,layout=out-in,up=packed,";

}  // namespace

const std::vector<Op>& Ops() {
  constexpr BackendKind kCuda = BackendKind::kCuda, kCpu = BackendKind::kCpu;
  static const std::vector<Op> ops = {
      {"ceiling",
       MakeCeilingWorkload,
       {{"kind=copy,bytes=1073741824", false, kCuda},
        {"kind=read,bytes=1073741824", false, kCuda},
        {"kind=write,bytes=1073741824", false, kCuda},
        {"kind=copy,bytes=268435456", false, kCpu},
        {"kind=read,bytes=268435456", false, kCpu},
        {"kind=write,bytes=268435456", false, kCpu},
        {"kind=node", true},
        {"kind=node,launch=early", true, kCuda},
        {"kind=small-copy", true},
        {"kind=small-copy,launch=early", true, kCuda},
        {"kind=gemm", true, kCuda},
        {"kind=gemm,size=1024,dtype=fp32", true, kCpu},
        {"kind=link-down", false},
        {"kind=link-up", false},
        {"kind=link-both", false}}},
      {"append",
       MakeAppendWorkload,
       {{"T=1", true},
        {"T=1,launch=early", true, kCuda},
        {"T=64", true},
        {"T=64", false},
        {"T=64,launch=early", true, kCuda},
        {"T=64,launch=early", false, kCuda},
        {"T=256", false},
        {"T=256,launch=early", false, kCuda},
        {"T=1024", false},
        {"T=1024,launch=early", false, kCuda},
        {"T=8192", false},
        {"T=8192,launch=early", false, kCuda},
        {"T=65536", false},
        {"T=65536,launch=early", false, kCuda},
        {"T=1,q_heads=32", true},
        {"T=1,q_heads=32,launch=early", true, kCuda},
        {"T=64,q_heads=32", true},
        {"T=64,q_heads=32,launch=early", true, kCuda},
        {"T=256,q_heads=32", false},
        {"T=256,q_heads=32,launch=early", false, kCuda},
        {"T=1024,q_heads=32", false},
        {"T=1024,q_heads=32,launch=early", false, kCuda},
        {"T=8192,q_heads=32", false},
        {"T=8192,q_heads=32,launch=early", false, kCuda},
        {"T=65536,q_heads=32", false},
        {"T=65536,q_heads=32,launch=early", false, kCuda}}},
      {"rope-update",
       MakeRopeUpdateWorkload,
       {{"B=2,T=8,L=128,H=4,D=32", true},
        {"B=2,T=8,L=128,H=4,D=32,launch=early", true, kCuda},
        {"B=8,T=64,L=8192,H=8,D=128", false},
        {"B=8,T=64,L=8192,H=8,D=128,launch=early", false, kCuda}}},
      {"mla-compress",
       MakeMlaCompressWorkload,
       {{"T=384", true},
        {"T=384,launch=early", true, kCuda},
        {kDeepSeek + "T=1", true},
        {kDeepSeek + "T=1,launch=early", true, kCuda},
        {kDeepSeek + "T=64", true},
        {kDeepSeek + "T=64,launch=early", true, kCuda},
        {kDeepSeek + "T=1024", false},
        {kDeepSeek + "T=8192", false}}},
      {"mla-append",
       MakeMlaAppendWorkload,
       {{"T=1", true},
        {"T=1,launch=off", true, kCuda},
        {"T=1,launch=early", true, kCuda},
        {"T=64", true},
        {"T=64,launch=off", true, kCuda},
        {"T=64,launch=early", true, kCuda},
        {"T=256", false},
        {"T=256,launch=off", false, kCuda},
        {"T=256,launch=early", false, kCuda},
        {"T=1024", false},
        {"T=1024,launch=off", false, kCuda},
        {"T=1024,launch=early", false, kCuda},
        {"T=8192", false},
        {"T=8192,launch=off", false, kCuda},
        {"T=8192,launch=early", false, kCuda},
        {"T=65536", false},
        {"T=65536,launch=off", false, kCuda},
        {"T=65536,launch=early", false, kCuda},
        {"T=1,from=hidden", true},
        {"T=1,from=hidden,launch=early", true, kCuda},
        {"T=64,from=hidden", true},
        {"T=64,from=hidden,launch=early", true, kCuda},
        {"T=1024,from=hidden", false},
        {"T=8192,from=hidden", false}}},
      {"mla-expand", MakeMlaExpandWorkload, {{"T=1024", false}, {"T=8192", false}}},
      {"swap",
       MakeSwapWorkload,
       {{"block=2097152,direction=down", false},
        {"block=2097152,direction=up", false},
        {"block=2097152,direction=both", false},
        {"block=131072,direction=down", false},
        {"block=131072,direction=up", false},
        {"block=131072,direction=both", false},
        {"block=65536,direction=down", false},
        {"block=65536,direction=up", false},
        {"block=65536,direction=both", false}}}};
  return ops;
}

std::string OpNames() {
  std::string names;
  for (const Op& op : Ops()) names.append(op.name).append(", ");
  return names + "all";
}

Result<const Op*> FindOp(const std::string& name) {
  for (const Op& op : Ops()) {
    if (name == op.name) return &op;
  }
  return InvalidArgument("bench " + name + "; allowed: " + OpNames() +
                         ", or manager or tier alone");
}

}  // namespace lariat::tools
