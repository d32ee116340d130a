// SPDX-License-Identifier: Apache-2.0
#include "lariat/block_hash.h"

#include <bit>
#include <memory>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lariat {
namespace {

// The bytes of what is hashed, one piece after another.
class Hasher {
 public:
  Hasher() { XXH3_128bits_reset(&state_); }

  void Bytes(std::string_view bytes) { XXH3_128bits_update(&state_, bytes.data(), bytes.size()); }
  template <class Integer>
  void Number(Integer value) {
    std::array<char, sizeof(Integer)> bytes;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFF);
    }
    Bytes({bytes.data(), bytes.size()});
  }
  void Text(std::string_view text) {
    Number(static_cast<std::uint64_t>(text.size()));
    Bytes(text);
  }
  BlockHash Result() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    return std::bit_cast<BlockHash>(canonical);
  }

 private:
  XXH3_state_t state_;
};

}  // namespace

std::string ToString(const BlockHash& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : hash.bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

BlockHash HashRoot(const OpenOptions& options, std::uint32_t rope_choice) {
  Hasher hasher;
  hasher.Bytes({"lariat block v1", 16});
  hasher.Text(options.salt);
  hasher.Text(options.adapter);
  hasher.Number(static_cast<std::uint64_t>(options.extra_keys.size()));
  for (const std::uint64_t key : options.extra_keys) hasher.Number(key);
  hasher.Number(rope_choice);
  return hasher.Result();
}

BlockHash HashBlock(const BlockHash& parent, std::span<const TokenId> tokens) {
  Hasher hasher;
  hasher.Bytes({reinterpret_cast<const char*>(parent.bytes.data()), parent.bytes.size()});
  if constexpr (std::endian::native == std::endian::little) {
    hasher.Bytes({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
  } else {
    for (const TokenId token : tokens) hasher.Number(static_cast<std::uint32_t>(token));
  }
  return hasher.Result();
}

}  // namespace lariat
