// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "lariat/kv_cache.h"
#include "lariat/types.h"

// Names of cached blocks that are the same in every process and on every machine: for a router that
// wants to know which server has a prefix, or a store that keeps blocks outside.
//
// A name stands for all tokens from the start of the text to the block's end, and for what keys
// them. It does not stand for the model, the element type, the block's layout or the
// tensor-parallel rank: whoever puts blocks of several caches into one place tells those apart.
//
// The cache itself never relies on a hash: it compares tokens. XXH3 is no cryptographic hash; who
// may choose tokens can make two texts of one name. Compare tokens, or give each tenant a secret
// salt, before one tenant's block serves another one.

namespace lariat {

// Big-endian: byte 0 is printed first.
struct BlockHash {
  std::array<std::uint8_t, 16> bytes = {};
  auto operator<=>(const BlockHash&) const = default;
};

// 32 lower-case hexadecimal digits.
std::string ToString(const BlockHash& hash);

// What the first block of a text follows. XXH3-128 (seed 0) of these bytes, integers little-endian:
//   the 15 characters "lariat block v1" and a zero,
//   u64 length of salt, salt, u64 length of adapter, adapter,
//   u64 number of extra_keys, each as u64,
//   u32 rope_choice
//   rope_choice: bit i: the sequence turns by the second table of CacheConfig::ropes[i] (longrope's
//     and dynamic's rows beyond the original length); 0 where no rope has two
BlockHash HashRoot(const OpenOptions& options, std::uint32_t rope_choice = 0);

// XXH3-128 (seed 0) of the 16 bytes of `parent`, then each token as a little-endian 32-bit integer.
//   parent: the block before, or HashRoot
//   tokens: of one block, block_size for a full one
BlockHash HashBlock(const BlockHash& parent, std::span<const TokenId> tokens);

}  // namespace lariat
