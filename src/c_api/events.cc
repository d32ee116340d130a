// SPDX-License-Identifier: Apache-2.0
// Events of the index, and the names of blocks.
#include <cstring>

#include "c_api/call.h"
#include "c_api/convert.h"
#include "c_api/structs.h"
#include "lariat/block_hash.h"
#include "lariat/kv_event.h"

using namespace lariat;         // NOLINT: the whole file is the C API's
using namespace lariat::c_api;  // NOLINT

namespace lariat::c_api {
namespace {

static_assert(sizeof(BlockHash) == LARIAT_HASH_SIZE);

lariat_event ToC(const KVEvent& from) {
  lariat_event to = {};
  to.kind = static_cast<std::int32_t>(from.kind);
  to.tier = static_cast<std::int32_t>(from.tier);
  to.group = from.group;
  to.num_tokens = static_cast<std::int32_t>(from.tokens.size());
  to.number = from.number;
  to.first_token = from.first_token;
  to.tokens = from.tokens.empty() ? nullptr : from.tokens.data();
  std::memcpy(to.hash, from.hash.bytes.data(), sizeof(to.hash));
  std::memcpy(to.parent, from.parent.bytes.data(), sizeof(to.parent));
  return to;
}

// Of results, what stands behind the size does not matter.
Status CheckEvents(const lariat_event* events, std::int64_t room) {
  Status status = CheckArray("events", events, room);
  const auto* at = reinterpret_cast<const std::byte*>(events);
  for (std::int64_t i = 0; status.ok() && i < room; ++i, at += events->struct_size) {
    const Name name = {"events", i};
    status = CheckStruct(name, at, kSizes<lariat_event>);
    if (!status.ok() || std::memcmp(at, events, sizeof(events->struct_size)) == 0) continue;
    return InvalidArgument(
        name.ToString().append(".struct_size differs from that of the first element"));
  }
  return status;
}

// take(span) fills events, as many as there are or as it has room for, and returns how many.
template <class Take>
Status FillEvents(lariat_event* events, std::int64_t room, std::int64_t* count, Take&& take) {
  if (count == nullptr) return NullResult("count");
  // All is looked at before anything is taken.
  if (Status status = CheckEvents(events, room); !status.ok()) return status;
  KVEvent taken[64];
  auto* to = reinterpret_cast<std::byte*>(events);
  std::int64_t filled = 0;
  while (filled < room) {
    const std::int64_t wanted = std::min<std::int64_t>(room - filled, std::ssize(taken));
    const Result<std::int64_t> got = take(std::span(taken).first(static_cast<std::size_t>(wanted)));
    if (!got.ok()) return got.status();
    for (std::int64_t i = 0; i < *got; ++i) {
      Fill(reinterpret_cast<lariat_event*>(to), ToC(taken[i]));
      to += events->struct_size;
    }
    filled += *got;
    if (*got < wanted) break;
  }
  *count = filled;
  return Status::Ok();
}

}  // namespace
}  // namespace lariat::c_api

lariat_code lariat_cache_drain_events(lariat_cache* cache, lariat_event* events, std::int64_t room,
                                      std::int64_t* count) {
  return Call(cache, [&](Handle& handle) {
    return FillEvents(events, room, count, [&](std::span<KVEvent> to) -> Result<std::int64_t> {
      return handle.cache->DrainEvents(to);
    });
  });
}

lariat_code lariat_cache_list_blocks(lariat_cache* cache, std::int64_t* cursor,
                                     lariat_event* events, std::int64_t room, std::int64_t* count) {
  return Call(cache, [&](Handle& handle) -> Status {
    if (cursor == nullptr) return NullResult("cursor");
    return FillEvents(events, room, count,
                      [&](std::span<KVEvent> to) { return handle.cache->ListBlocks(*cursor, to); });
  });
}

lariat_code lariat_hash_root(const lariat_open_options* options, std::uint32_t rope_choice,
                             std::uint8_t* hash) {
  return Call([&]() -> Status {
    if (hash == nullptr) return NullResult("hash");
    Options converted;
    if (Status status = Convert(options, converted); !status.ok()) return status;
    const BlockHash root = HashRoot(converted.options, rope_choice);
    std::memcpy(hash, root.bytes.data(), LARIAT_HASH_SIZE);
    return Status::Ok();
  });
}

lariat_code lariat_hash_block(const std::uint8_t* parent, const std::int32_t* tokens,
                              std::int64_t num_tokens, std::uint8_t* hash) {
  return Call([&]() -> Status {
    if (parent == nullptr) return NullResult("parent");
    if (hash == nullptr) return NullResult("hash");
    const auto all = Span("tokens", tokens, num_tokens);
    if (!all.ok()) return all.status();
    BlockHash above;
    std::memcpy(above.bytes.data(), parent, LARIAT_HASH_SIZE);
    const BlockHash block = HashBlock(above, *all);
    std::memcpy(hash, block.bytes.data(), LARIAT_HASH_SIZE);
    return Status::Ok();
  });
}
