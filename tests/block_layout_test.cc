// SPDX-License-Identifier: Apache-2.0
// Where every element of a cache lies, in each layout: as docs/layouts.md says, no two of a group
// at one place, and the same rows whatever the layout is.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "support/late_world.h"
#include "support/window_cache.h"

namespace lariat {
namespace {

using testing::LateWorld;
using testing::RowWorld;
using testing::Tokens;
using testing::WorldOptions;

constexpr Layout kLayouts[] = {Layout::kBlockMajor, Layout::kLayerMajor};
constexpr Order kOrders[] = {Order::kNHD, Order::kHND};

KVCache Make(const CacheConfig& config) {
  auto made = KVCache::Create(config);
  if (!made.ok()) FAIL(made.status().ToString());
  return *std::move(made);
}

// Two layers of unlike widths and, with `windows`, two more of another group, with fewer bytes.
CacheConfig Config(Layout layout, Order order, bool windows) {
  CacheConfig config;
  config.layers = {{.kv_heads = 2, .k_dim = 4, .v_dim = 6},
                   {.kv_heads = 3, .k_dim = 8, .v_dim = 2}};
  if (windows) {
    const LayerSpec narrow{
        .kind = LayerKind::kSliding, .kv_heads = 1, .k_dim = 8, .v_dim = 6, .window = 5};
    config.layers.insert(config.layers.begin() + 1, narrow);
    config.layers.push_back(narrow);
  }
  config.dtype = DType::kBF16;
  config.backend = BackendKind::kCpu;
  config.memory.num_blocks = 5;
  config.block_size = 3;
  config.max_tokens_per_sequence = 12;
  config.max_tokens_per_step = 12;
  config.max_sequences = 2;
  config.layout = layout;
  config.order = order;
  return config;
}

TEST_CASE("Every element of a group's blocks has a place of its own in the pool", "[layout]") {
  for (const Layout layout : kLayouts) {
    for (const Order order : kOrders) {
      for (const bool windows : {false, true}) {
        CAPTURE(static_cast<int>(layout), static_cast<int>(order), windows);
        const KVCache cache = Make(Config(layout, order, windows));
        const auto elements = cache.footprint().pool_bytes / 2;
        const auto* pool = static_cast<const std::uint16_t*>(cache.Layer(0)->k);
        // By group, the block that an element belongs to.
        std::map<int, std::map<std::int64_t, std::int64_t>> owners;
        for (int l = 0; l < static_cast<int>(cache.config().layers.size()); ++l) {
          const LayerView view = *cache.Layer(l);
          const struct {
            const void* base;
            int dim;
            std::int64_t block, row, head;
          } planes[] = {
              {view.k, view.k_dim, view.k_block_stride, view.k_row_stride, view.k_head_stride},
              {view.v, view.v_dim, view.v_block_stride, view.v_row_stride, view.v_head_stride}};
          for (const auto& plane : planes) {
            // What FlashInfer calls NHD and HND.
            CHECK((plane.head == plane.dim) == (order == Order::kNHD));
            CHECK((plane.row == plane.dim) == (order == Order::kHND || view.kv_heads == 1));
            const std::int64_t first = static_cast<const std::uint16_t*>(plane.base) - pool;
            for (std::int64_t b = 0; b < view.num_blocks; ++b) {
              for (std::int64_t r = 0; r < view.block_size; ++r) {
                for (std::int64_t h = 0; h < view.kv_heads; ++h) {
                  for (std::int64_t i = 0; i < plane.dim; ++i) {
                    const std::int64_t at =
                        first + b * plane.block + r * plane.row + h * plane.head + i;
                    const bool fresh = owners[view.group].emplace(at, b).second;
                    if (!fresh || at < 0 || at >= elements) FAIL("element at " << at);
                  }
                }
              }
            }
          }
        }
        // The first group has no padding, and its blocks are what moves; so what lies at one place
        // belongs to one block, whichever group it serves.
        CHECK(std::ssize(owners[0]) == elements);
        for (const auto& [at, block] : owners[1]) {
          if (owners[0].at(at) != block) FAIL("element " << at << " of two blocks");
        }
      }
    }
  }
}

TEST_CASE("A block is as large as the largest group's, whichever that is", "[layout]") {
  CacheConfig config = Config(Layout::kBlockMajor, Order::kNHD, false);
  config.layers[0] = {.kv_heads = 1, .k_dim = 4, .v_dim = 4};
  config.layers[1] = {
      .kind = LayerKind::kSliding, .kv_heads = 4, .k_dim = 8, .v_dim = 8, .window = 5};
  const KVCache cache = Make(config);
  const MemoryFootprint footprint = cache.footprint();
  CHECK(footprint.num_groups == 2);
  CHECK(footprint.bytes_per_block == 3 * 4 * (8 + 8) * 2);
  CHECK(footprint.padding_bytes == footprint.bytes_per_block - 3 * (4 + 4) * 2);
  const auto* const pool = static_cast<const std::byte*>(cache.Layer(0)->k);
  const LayerView wide = *cache.Layer(1);
  const auto* const last = static_cast<const std::uint16_t*>(wide.v) + 4 * wide.v_block_stride +
                           2 * wide.v_row_stride + 3 * wide.v_head_stride + 7;
  CHECK(reinterpret_cast<const std::byte*>(last + 1) == pool + footprint.pool_bytes);
  config.layout = Layout::kLayerMajor;
  CHECK(KVCache::Create(config).status().code() == Code::kUnsupported);
}

TEST_CASE("A layer-major pool by hand", "[layout]") {
  // Per layer K then V, each of 5 blocks of 3 tokens: 2 heads of 4, 2 of 6; 3 of 8, 3 of 2.
  for (const Order order : kOrders) {
    const KVCache cache = Make(Config(Layout::kLayerMajor, order, false));
    const auto* pool = static_cast<const std::uint16_t*>(cache.Layer(0)->k);
    const LayerView one = *cache.Layer(0), two = *cache.Layer(1);
    CHECK(static_cast<const std::uint16_t*>(one.v) - pool == 120);
    CHECK(static_cast<const std::uint16_t*>(two.k) - pool == 300);
    CHECK(static_cast<const std::uint16_t*>(two.v) - pool == 660);
    CHECK(one.k_block_stride == 24);
    CHECK(one.v_block_stride == 36);
    CHECK(two.k_block_stride == 72);
    CHECK(two.v_block_stride == 18);
    CHECK(two.k_row_stride == (order == Order::kNHD ? 24 : 8));
    CHECK(two.k_head_stride == (order == Order::kNHD ? 8 : 24));
  }
}

TEST_CASE("Planes that do not fit one by one are refused in layer-major", "[layout]") {
  CacheConfig config = Config(Layout::kLayerMajor, Order::kNHD, true);
  REQUIRE(KVCache::Footprint(config).ok());
  config.layers[1].k_dim = 10;  // the first group's first keys are of 8
  const auto refused = KVCache::Footprint(config);
  CHECK(refused.status().code() == Code::kUnsupported);
  CHECK(refused.status().message().find("layout layer_major with layers[1].k_dim and v_dim") !=
        std::string::npos);
  config.layout = Layout::kBlockMajor;
  CHECK(KVCache::Footprint(config).ok());
  // More planes than the first group has.
  config = Config(Layout::kLayerMajor, Order::kNHD, true);
  config.layers[3].k_dim = config.layers[3].v_dim = 2;
  config.layers.push_back(config.layers[3]);
  const auto more = KVCache::Footprint(config);
  CHECK(more.status().code() == Code::kUnsupported);
}

// One life of a sequence and its fork, and what ReadRows tells of all of it.
std::vector<std::vector<char>> Life(WorldOptions options, Layout layout, Order order) {
  options.layout = layout;
  options.order = order;
  LateWorld late(options);
  RowWorld& world = late.world;
  const SequenceId a = *world.Open(Tokens(0, 10));
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 10}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  const SequenceId b = *world.Fork(a, 9);
  REQUIRE(world.Run({{.sequence = a, .num_tokens = 3}, {.sequence = b, .num_tokens = 2}}, {}).ok());
  REQUIRE(world.Commit({}).ok());
  CHECK(world.cache().GetStats().copied_blocks > 0);
  late.Finish();
  world.CheckRows();
  CHECK(world.errors() == "");
  std::vector<std::vector<char>> rows;
  for (int l = 0; l < static_cast<int>(world.cache().config().layers.size()); ++l) {
    for (const SequenceId id : {a, b}) {
      const std::int64_t first = *world.cache().FirstRow(id, l);
      const std::int64_t count = world.cache().GetExtent(id)->settled - first;
      rows.emplace_back(4096, 'x');
      rows.emplace_back(4096, 'x');
      REQUIRE(world.cache()
                  .ReadRows(id, l, first, count, rows[rows.size() - 2].data(), rows.back().data())
                  .ok());
    }
  }
  return rows;
}

TEST_CASE("The same rows come out of every layout", "[layout]") {
  for (const int kind : {0, 1, 2}) {
    CAPTURE(kind);
    WorldOptions options;
    options.kv_heads = 3;
    if (kind == 1) options = testing::MlaWorld();
    if (kind == 2) {
      options.more = {
          {.kind = LayerKind::kSliding, .kv_heads = 2, .k_dim = 6, .v_dim = 4, .window = 5}};
    }
    const auto want = Life(options, Layout::kBlockMajor, Order::kNHD);
    for (const Layout layout : kLayouts) {
      for (const Order order : kOrders) CHECK((Life(options, layout, order) == want));
    }
  }
}

}  // namespace
}  // namespace lariat
