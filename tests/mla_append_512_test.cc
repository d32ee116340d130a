// SPDX-License-Identifier: Apache-2.0
// The widths of DeepSeek's family in 16 bits, which CUDA has a kernel of its own for: every style,
// few tokens and many, whatever the bits.
#include "support/mla_append_runner.h"

namespace lariat {
namespace {

using reference::B16;
using reference::F16;
using testing::AvailableDevices;
using testing::DeepSeek;
using testing::MakeMlaAppend;
using testing::MlaAppendOptions;
using testing::MlaAppendShape;
using testing::Random;
using testing::RunMlaAppend;

// The CPU's row of every token, and the same bits on every other device.
template <class B>
void SameEverywhere(Random& random, const MlaAppendShape& shape,
                    const MlaAppendOptions& options = {}) {
  const auto c = MakeMlaAppend<B, B>(random, shape);
  std::vector<typename B::Bits> cpu;
  for (Device& device : AvailableDevices()) {
    const auto cache = RunMlaAppend(device, c, options).cache;
    if (cpu.empty()) cpu = cache;
    CHECK((cache == cpu));
  }
}

template <class B>
void Shapes(unsigned seed) {
  Random random(seed);
  for (const RopeStyle style :
       {RopeStyle::kInterleaved, RopeStyle::kHalf, RopeStyle::kInterleavedToHalf}) {
    for (const std::int64_t tokens : {1, 2, 3, 67}) {
      MlaAppendShape s = DeepSeek(tokens);
      s.style = style;
      s.eps = random.OneOf({1e-6F, 0.0F, 0.25F});
      s.block_size = random.OneOf({1, 48, 64});
      s.blocks = tokens / s.block_size + 2;
      s.stride_pad = random.OneOf<std::int64_t>({0, 8, 64});
      SameEverywhere<B>(random, s);
      s.any_bits = true;
      s.padded_percent = 10;
      s.bad_percent = 10;
      SameEverywhere<B>(random, s, {.indirect_fault = tokens == 3});
      SameEverywhere<B>(random, s, {.dependent_launch = DependentLaunch::kIndexEarly});
    }
  }
}

}  // namespace

TEST_CASE("mla append 512 + 64: every style, strides, any bits, padding and faults") {
  Shapes<B16>(31);
  Shapes<F16>(32);
}

// As many as take blocks of two and of four warps; the reference needs its time.
TEST_CASE("mla append 512 + 64: many tokens") {
  Random random(33);
  MlaAppendShape s = DeepSeek(130);
  s.bad_percent = 1;
  for (const DependentLaunch kind :
       {DependentLaunch::kOff, DependentLaunch::kAfterWait, DependentLaunch::kIndexEarly}) {
    SameEverywhere<B16>(random, s, {.dependent_launch = kind});
  }
  s = DeepSeek(4099);
  s.style = RopeStyle::kInterleavedToHalf;
  s.padded_percent = 1;
  s.bad_percent = 1;
  SameEverywhere<B16>(random, s);
}

}  // namespace lariat
