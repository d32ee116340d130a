// SPDX-License-Identifier: Apache-2.0
// What readers see of the pool: a layer's planes, and rows read back for checks.
#include <algorithm>

#include "cache/kv_cache_impl.h"

namespace lariat {

Result<Stream> KVCache::Impl::ReadingStream() {
  // Copies that a live step started may hold settled rows.
  if (manager.live_steps() > 0) return last_stream;
  if (last_event.handle != nullptr) {
    if (Status s = device.Wait(*side_stream, last_event); !s.ok()) return s;
  }
  return *side_stream;
}

Status KVCache::Impl::ReadRows(SequenceId id, int layer, std::int64_t first, std::int64_t count,
                               void* k, void* v) {
  const auto found = manager.GetResident(id);
  if (!found.ok()) return found.status();
  const blocks::Sequence& sequence = **found;
  if (Status s = CheckLayer(layer); !s.ok()) return s;
  // What is indexed of a sequence before its first Commit is its hit.
  const std::int64_t hit = sequence.live_steps > 0 ? sequence.indexed * config.block_size : 0;
  const std::int64_t readable = std::max<std::int64_t>(sequence.settled, hit);
  if (first < 0 || count < 0 || first > readable || count > readable - first) {
    return InvalidArgument("rows " + std::to_string(first) + " + " + std::to_string(count) +
                           ": allowed are those within the " + std::to_string(readable) +
                           " settled ones");
  }
  const int group = GroupOf(layer);
  if (const std::int64_t kept = manager.FirstRow(sequence, group); count > 0 && first < kept) {
    return InvalidArgument("first row " + std::to_string(first) + ": of layer " +
                           std::to_string(layer) + " those before " + std::to_string(kept) +
                           " were given back, they are out of its window");
  }
  if (!device.backend().has_memory()) {
    return Unsupported("ReadRows: the null backend holds no rows");
  }
  const storage::LayerPlanes& planes = storage.layout().layers()[static_cast<std::size_t>(layer)];
  const Result<Stream> stream = ReadingStream();
  if (!stream.ok()) return stream.status();
  const int block_size = config.block_size;
  const std::vector<std::int32_t>& table =
      group == 0 ? sequence.table : sequence.sides[static_cast<std::size_t>(group - 1)].table;
  for (std::int64_t at = first; at < first + count;) {
    const auto row = static_cast<int>(at % block_size);
    const auto rows =
        static_cast<int>(std::min<std::int64_t>(block_size - row, first + count - at));
    const auto offset = [&](void* out, std::int64_t row_bytes) -> void* {
      return out == nullptr ? nullptr : static_cast<std::byte*>(out) + (at - first) * row_bytes;
    };
    const std::int32_t block = table[static_cast<std::size_t>(at / block_size)];
    if (Status s = storage.ReadRows(layer, block, row, rows, offset(k, planes.k.row_bytes),
                                    offset(v, planes.v.row_bytes), *stream);
        !s.ok()) {
      return s;
    }
    at += rows;
  }
  return device.Synchronize(*stream);
}

Result<LayerView> KVCache::Impl::Layer(int layer) const {
  if (Status s = CheckLayer(layer); !s.ok()) return s;
  const LayerSpec& spec = resolved.layers[static_cast<std::size_t>(layer)];
  const storage::LayerPlanes& planes = storage.layout().layers()[static_cast<std::size_t>(layer)];
  const auto element = static_cast<std::int64_t>(SizeOf(config.dtype));
  std::byte* base = storage.base();
  LayerView view;
  view.dtype = config.dtype;
  view.group = planes.group;
  view.kind = spec.kind;
  view.window = spec.window;
  view.kv_heads = spec.kv_heads;
  view.k_dim = spec.k_dim;
  view.v_dim = spec.v_dim;
  view.block_size = config.block_size;
  view.num_blocks = resolved.num_blocks;
  view.k = base == nullptr ? nullptr : base + planes.k.offset;
  view.v = base == nullptr || planes.v.empty() ? nullptr : base + planes.v.offset;
  view.k_block_stride = planes.k.block_stride / element;
  view.v_block_stride = planes.v.block_stride / element;
  view.k_row_stride = planes.k.row_bytes / element;
  view.v_row_stride = planes.v.row_bytes / element;
  view.k_head_stride = spec.k_dim;
  view.v_head_stride = spec.v_dim;
  if (spec.rope >= 0) {
    const cache::RopeTable& table = ropes[static_cast<std::size_t>(spec.rope)];
    view.cos = static_cast<const float*>(table.cos.data());
    view.sin = static_cast<const float*>(table.sin.data());
    view.num_positions = config.max_tokens_per_sequence;
  }
  return view;
}

}  // namespace lariat
