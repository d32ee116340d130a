// SPDX-License-Identifier: Apache-2.0
// What is asked about prompts and salts.
#include "c_api/call.h"
#include "c_api/convert.h"
#include "c_api/structs.h"

using namespace lariat;         // NOLINT: the whole file is the C API's
using namespace lariat::c_api;  // NOLINT

namespace lariat::c_api {
namespace {

void FillMatch(const PrefixMatch& from, lariat_prefix_match* match) {
  lariat_prefix_match to = {};
  to.tokens = from.tokens;
  to.blocks = from.blocks;
  to.idle_blocks = from.idle_blocks;
  to.host_tokens = from.host_tokens;
  Fill(match, to);
}

// What the calls about prompts share: call(cache, prompt, options).
template <class F>
lariat_code WithPrompt(lariat_cache* cache, const std::int32_t* prompt, std::int64_t num_tokens,
                       const lariat_open_options* options, F&& call) {
  return Call(cache, [&](Handle& handle) -> Status {
    const auto tokens = Span("prompt", prompt, num_tokens);
    if (!tokens.ok()) return tokens.status();
    Options converted;
    if (Status status = Convert(options, converted); !status.ok()) return status;
    return call(*handle.cache, *tokens, converted.options);
  });
}

Status TellCount(const Result<std::int64_t>& count, std::int64_t* to) {
  if (count.ok() && to != nullptr) *to = *count;
  return count.status();
}

// A salt that is passed by itself.
template <class F>
lariat_code WithSalt(lariat_cache* cache, const void* salt, std::size_t size, F&& call) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (salt == nullptr && size != 0) return NullResult("salt");
    return call(*handle.cache, std::string_view(static_cast<const char*>(salt), size));
  });
}

}  // namespace
}  // namespace lariat::c_api

lariat_code lariat_cache_match(lariat_cache* cache, const std::int32_t* prompt,
                               std::int64_t num_tokens, const lariat_open_options* options,
                               lariat_prefix_match* match) {
  return WithPrompt(cache, prompt, num_tokens, options,
                    [&](KVCache& kv, std::span<const TokenId> tokens, const OpenOptions& with) {
                      Status status = Check("match", match);
                      if (status.ok()) FillMatch(kv.Match(tokens, with), match);
                      return status;
                    });
}

lariat_code lariat_sequence_match(lariat_cache* cache, std::uint64_t sequence,
                                  lariat_prefix_match* match) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (Status status = Check("match", match); !status.ok()) return status;
    const auto found = handle.cache->Match(SequenceId{sequence});
    if (found.ok()) FillMatch(*found, match);
    return found.status();
  });
}

lariat_code lariat_sequence_open(lariat_cache* cache, const std::int32_t* prompt,
                                 std::int64_t num_tokens, const lariat_open_options* options,
                                 std::uint64_t* sequence) {
  return WithPrompt(
      cache, prompt, num_tokens, options,
      [&](KVCache& kv, std::span<const TokenId> tokens, const OpenOptions& with) -> Status {
        if (sequence == nullptr) return NullResult("sequence");
        const auto opened = kv.Open(tokens, with);
        if (opened.ok()) *sequence = static_cast<std::uint64_t>(*opened);
        return opened.status();
      });
}

lariat_code lariat_cache_pin(lariat_cache* cache, const std::int32_t* prompt,
                             std::int64_t num_tokens, const lariat_open_options* options) {
  return WithPrompt(cache, prompt, num_tokens, options,
                    [](KVCache& kv, std::span<const TokenId> tokens, const OpenOptions& with) {
                      return kv.Pin(tokens, with);
                    });
}

lariat_code lariat_cache_unpin(lariat_cache* cache, const std::int32_t* prompt,
                               std::int64_t num_tokens, const lariat_open_options* options) {
  return WithPrompt(cache, prompt, num_tokens, options,
                    [](KVCache& kv, std::span<const TokenId> tokens, const OpenOptions& with) {
                      return kv.Unpin(tokens, with);
                    });
}

lariat_code lariat_cache_remove(lariat_cache* cache, const std::int32_t* prompt,
                                std::int64_t num_tokens, const lariat_open_options* options,
                                std::int64_t* blocks) {
  return WithPrompt(cache, prompt, num_tokens, options,
                    [&](KVCache& kv, std::span<const TokenId> tokens, const OpenOptions& with) {
                      return TellCount(kv.Remove(tokens, with), blocks);
                    });
}

lariat_code lariat_cache_remove_salt(lariat_cache* cache, const void* salt, std::size_t salt_size,
                                     std::int64_t* blocks) {
  return WithSalt(cache, salt, salt_size, [&](KVCache& kv, std::string_view text) {
    return TellCount(kv.RemoveSalt(text), blocks);
  });
}

lariat_code lariat_cache_expire(lariat_cache* cache, std::int64_t now_ms) {
  return Call(cache, [&](Handle& handle) { return handle.cache->Expire(now_ms); });
}

lariat_code lariat_cache_set_quota(lariat_cache* cache, const void* salt, std::size_t salt_size,
                                   std::int64_t max_idle_blocks) {
  return WithSalt(cache, salt, salt_size, [&](KVCache& kv, std::string_view text) {
    return kv.SetQuota(text, max_idle_blocks);
  });
}
