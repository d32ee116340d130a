// SPDX-License-Identifier: Apache-2.0
// What readers see of the pool: a layer's planes, and rows read back for checks.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cache/kv_cache_impl.h"

namespace lariat {

namespace {

// Where rows of one plane are read to, piece by piece: the caller's memory, or, of a plane with
// heads of rows, memory from which Finish makes the caller's rows of heads.
class RowsOut {
 public:
  RowsOut(const storage::Plane& plane, std::int64_t count, void* out)
      : plane_(plane), out_(plane.empty() ? nullptr : static_cast<std::byte*>(out)), next_(out_) {
    if (out_ == nullptr || plane.rows_of_heads() || plane.heads == 1) return;
    staged_.resize(static_cast<std::size_t>(count * plane.row_bytes));
    next_ = staged_.data();
  }
  // Where the next rows go, of one block.
  void* Next(int rows) {
    if (out_ == nullptr) return nullptr;
    if (!staged_.empty()) pieces_.push_back(rows);
    return std::exchange(next_, next_ + rows * plane_.row_bytes);
  }
  // REQUIRES: the copies are done.
  void Finish() {
    const std::byte* from = staged_.data();
    std::byte* to = out_;
    for (const int rows : pieces_) {
      for (int head = 0; head < plane_.heads; ++head) {
        for (int row = 0; row < rows; ++row, from += plane_.head_bytes) {
          std::memcpy(to + row * plane_.row_bytes + head * plane_.head_bytes, from,
                      static_cast<std::size_t>(plane_.head_bytes));
        }
      }
      to += rows * plane_.row_bytes;
    }
  }

 private:
  const storage::Plane& plane_;
  std::byte* out_;
  std::byte* next_;
  std::vector<std::byte> staged_;
  std::vector<int> pieces_;  // rows of each
};

}  // namespace

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
  const std::int64_t hit =
      manager.PreparedSteps(sequence) > 0 ? sequence.indexed * config.block_size : 0;
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
  RowsOut k_out(planes.k, count, k), v_out(planes.v, count, v);
  const int block_size = config.block_size;
  const blocks::BlockTable& table =
      group == 0 ? sequence.table : sequence.sides[static_cast<std::size_t>(group - 1)].table;
  for (std::int64_t at = first; at < first + count;) {
    const auto row = static_cast<int>(at % block_size);
    const auto rows =
        static_cast<int>(std::min<std::int64_t>(block_size - row, first + count - at));
    const std::int32_t block = table[static_cast<std::size_t>(at / block_size)];
    if (Status s =
            storage.ReadRows(layer, block, row, rows, k_out.Next(rows), v_out.Next(rows), *stream);
        !s.ok()) {
      (void)device.Synchronize(*stream);  // copies before it may still write
      return s;
    }
    at += rows;
  }
  if (Status s = device.Synchronize(*stream); !s.ok()) return s;
  k_out.Finish();
  v_out.Finish();
  return {};
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
  view.k_row_stride = planes.k.row_stride / element;
  view.v_row_stride = planes.v.row_stride / element;
  view.k_head_stride = planes.k.head_stride / element;
  view.v_head_stride = planes.v.head_stride / element;
  if (spec.rope >= 0) {
    const cache::RopeTable& table = ropes[static_cast<std::size_t>(spec.rope)];
    view.cos = static_cast<const float*>(table.cos.data());
    view.sin = static_cast<const float*>(table.sin.data());
    view.num_positions = config.max_tokens_per_sequence;
  }
  return view;
}

// --- The public calls -------------------------------------------------------------------------

StepView KVCache::View(int group) const {
  const bool known = group >= 0 && group < impl_->resolved.footprint.num_groups;
  return known ? impl_->arrays.view(group) : StepView{};
}

StepHostView KVCache::HostView(int group) const {
  const bool known = group >= 0 && group < impl_->resolved.footprint.num_groups;
  return known ? impl_->arrays.host_view(group) : StepHostView{};
}

Result<LayerView> KVCache::Layer(int layer) const {
  return Guarded([&] { return impl_->Layer(layer); });
}

Status KVCache::ReadRows(SequenceId sequence, int layer, std::int64_t first, std::int64_t count,
                         void* k, void* v) {
  return Guarded([&] { return impl_->ReadRows(sequence, layer, first, count, k, v); });
}

Stats KVCache::GetStats() const { return impl_->ReadStats(); }
std::string KVCache::Snapshot() const { return impl_->manager.Snapshot(); }

}  // namespace lariat
