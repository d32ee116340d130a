// SPDX-License-Identifier: Apache-2.0
#include "lariat/block_hash.h"

#include <set>
#include <string>
#include <vector>

#include "lariat/kv_cache.h"
#include "support/catch.h"

using namespace lariat;

namespace {

std::vector<TokenId> Tokens(TokenId first, std::int64_t count) {
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<TokenId>(i));
  return tokens;
}

}  // namespace

// Made by `xxhsum -H128` of the bytes that block_hash.h lists: they never change.
TEST_CASE("A block's hash is the same everywhere") {
  const BlockHash root = HashRoot({});
  CHECK(ToString(root) == "01624f9dbe6260d8686561ec4ec8bba0");
  const std::uint64_t extra[] = {7, 0xFFFFFFFFFFFFFFFF};
  const BlockHash keyed = HashRoot({.salt = "tenant", .adapter = "lora", .extra_keys = extra}, 5);
  CHECK(ToString(keyed) == "beb90162efdd4dbd1e96a4fca43124af");
  const std::vector<TokenId> tokens = {1, -2, 300000, 0};
  CHECK(ToString(HashBlock(root, tokens)) == "d85f083ab51fde8be537bab8b52614a4");
  CHECK(ToString(HashBlock(keyed, tokens)) == "af9ac54b4e74c0e9135e804e71b1d3aa");
}

TEST_CASE("What keys a block, and where a token stands, tell hashes apart") {
  const std::uint64_t one[] = {1}, two[] = {1, 1};
  std::set<BlockHash> seen;
  int count = 0;
  for (const OpenOptions& options :
       {OpenOptions{}, OpenOptions{.salt = "a"}, OpenOptions{.adapter = "a"},
        OpenOptions{.salt = "ab"}, OpenOptions{.salt = "a", .adapter = "b"},
        OpenOptions{.extra_keys = one}, OpenOptions{.extra_keys = two}}) {
    for (const std::uint32_t choice : {0U, 1U, 2U}) {
      const BlockHash root = HashRoot(options, choice);
      const auto a = HashBlock(root, Tokens(0, 4));
      for (const BlockHash& hash : {root, a, HashBlock(root, Tokens(0, 3)),
                                    HashBlock(root, Tokens(1, 4)), HashBlock(a, Tokens(0, 4))}) {
        seen.insert(hash);
        ++count;
      }
    }
  }
  CHECK(std::ssize(seen) == count);
}

TEST_CASE("A cache names the blocks that are open to reuse") {
  CacheConfig config;
  config.layers = {{.kv_heads = 1, .k_dim = 2, .v_dim = 2}};
  config.backend = BackendKind::kNull;
  config.memory.num_blocks = 16;
  config.block_size = 4;
  config.max_tokens_per_sequence = 64;
  auto cache = KVCache::Create(config);
  REQUIRE(cache.ok());
  const std::vector<TokenId> prompt = Tokens(10, 11);
  const OpenOptions options = {.salt = "tenant"};
  const auto id = cache->Open(prompt, options);
  REQUIRE(id.ok());
  std::vector<BlockHash> hashes(5);
  const auto count = [&] { return *cache->BlockHashes(*id, hashes); };
  CHECK(count() == 0);  // not computed yet
  const StepItem item = {.sequence = *id, .num_tokens = 11};
  auto step = cache->Plan({&item, 1});
  REQUIRE(step.ok());
  REQUIRE(cache->Prepare(*step, {}).ok());
  CHECK(count() == 0);
  REQUIRE(cache->Commit(*step, {}, {}).ok());
  REQUIRE(count() == 2);  // the third block has three tokens
  const std::span<const TokenId> ids = prompt;
  const BlockHash first = HashBlock(HashRoot(options), ids.first(4));
  CHECK(hashes[0] == first);
  CHECK(hashes[1] == HashBlock(first, ids.subspan(4, 4)));
  CHECK(*cache->BlockHashes(*id, std::span(hashes).first(1)) == 1);
  REQUIRE(cache->Clear().ok());
  CHECK(count() == 0);
  CHECK(cache->BlockHashes(SequenceId{999}, hashes).status().code() == Code::kInvalidArgument);
}
