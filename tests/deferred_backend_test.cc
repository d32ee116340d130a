// SPDX-License-Identifier: Apache-2.0
// The deferred mode of cpu and null: what is late, what forces it, and what shows that it is.
#include "backend/deferred_backend.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "lariat/device.h"
#include "support/catch.h"

namespace lariat {
namespace {

constexpr std::size_t kBytes = 64;
using Bytes = std::vector<std::uint8_t>;

bool All(const Bytes& bytes, std::uint8_t value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::uint8_t b) { return b == value; });
}

// A deferred CPU with a late stream; buffers of one value each.
struct Late {
  explicit Late(std::uint64_t seed)
      : device(*Device::CreateDeferred(BackendKind::kCpu, seed)), stream(*device.CreateStream()) {}
  void Copy(Bytes& to, const Bytes& from, Stream on) {
    REQUIRE(device.CopyToHost(to.data(), from.data(), from.size(), on).ok());
  }
  Event Record(Stream on) {
    const Event event = *device.CreateEvent();
    REQUIRE(device.Record(event, on).ok());
    return event;
  }
  Device device;
  Stream stream;
};

TEST_CASE("deferred: kinds and names") {
  CHECK(Device::CreateDeferred(BackendKind::kCuda, 1).status().code() == Code::kUnsupported);
  CHECK(Device::CreateDeferred(BackendKind::kAuto, 1)->kind() == BackendKind::kCpu);
  const Device null = *Device::CreateDeferred(BackendKind::kNull, 1);
  CHECK(null.kind() == BackendKind::kNull);
  CHECK(null.name() == "null, deferred");
  CHECK_FALSE(null.backend().has_memory());
}

TEST_CASE("deferred: a copy on a stream of its own is late, and its target is poison till then") {
  int late = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Late world(seed);
    const Bytes from(kBytes, 7);
    Bytes to(kBytes, 1);
    world.Copy(to, from, world.stream);
    late += All(to, 0xFF);
    CHECK((All(to, 0xFF) || All(to, 7)));
    REQUIRE(world.device.Synchronize(world.stream).ok());
    CHECK(All(to, 7));
    Bytes now(kBytes, 1);
    world.Copy(now, from, Stream{});  // the default stream runs at once
    CHECK(All(now, 7));
  }
  CHECK(late >= 25);
  CHECK(late < 40);  // now and then one runs that nobody waits for
}

TEST_CASE("deferred: the host that asks an event, and the stream that waits for it, end the copy") {
  std::set<int> times;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Late world(seed);
    const Bytes from(kBytes, 7);
    Bytes to(kBytes, 1);
    world.Copy(to, from, world.stream);
    const Event event = world.Record(world.stream);
    int asked = 1;
    while (!*world.device.Query(event)) ++asked;
    times.insert(asked);
    CHECK(All(to, 7));
    CHECK(*world.device.Query(event));
    world.Copy(to, Bytes(kBytes, 8), Stream{});
    CHECK(All(to, 8));

    world.Copy(to, from, world.stream);
    REQUIRE(world.device.Record(event, world.stream).ok());
    REQUIRE(world.device.Wait(Stream{}, event).ok());
    CHECK(All(to, 7));
    world.device.DestroyEvent(event);
    world.device.DestroyStream(world.stream);
  }
  CHECK(times == std::set<int>{1, 2, 3});
}

TEST_CASE("deferred: an event never recorded has passed, and a record again is another one") {
  Late world(1);
  const Event event = *world.device.CreateEvent();
  CHECK(*world.device.Query(event));
  REQUIRE(world.device.Wait(Stream{}, event).ok());
  const Stream other = *world.device.CreateStream();
  const Bytes one(kBytes, 1), two(kBytes, 2);
  Bytes first(kBytes), second(kBytes), third(kBytes);
  world.Copy(first, one, world.stream);
  REQUIRE(world.device.Record(event, world.stream).ok());
  REQUIRE(world.device.Wait(other, event).ok());  // for this record
  REQUIRE(world.device.Record(event, Stream{}).ok());
  CHECK(*world.device.Query(event));
  world.Copy(second, two, other);
  REQUIRE(world.device.Synchronize(other).ok());
  CHECK(All(first, 1));
  CHECK(All(second, 2));
  world.Copy(third, one, world.stream);
  REQUIRE(world.device.Fill(second.data(), 3, kBytes, world.stream).ok());  // behind the copy
  CHECK(All(third, 1));
  CHECK(All(second, 3));
}

// Down: a -> page. Up: page -> b, which waits for the event or does not.
TEST_CASE("deferred: streams go in any order but for events, and a missing wait shows") {
  int wrong_without = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    for (const bool waits : {true, false}) {
      Late world(seed);
      const Stream up = *world.device.CreateStream();
      const Bytes a(kBytes, 5);
      Bytes page(kBytes, 1), b(kBytes, 2);
      world.Copy(page, a, world.stream);
      const Event down_done = world.Record(world.stream);
      if (waits) REQUIRE(world.device.Wait(up, down_done).ok());
      world.Copy(b, page, up);
      const Event up_done = world.Record(up);
      REQUIRE(world.device.Wait(Stream{}, up_done).ok());
      if (waits) {
        REQUIRE(All(b, 5));
      } else {
        wrong_without += !All(b, 5);
      }
      REQUIRE(world.device.Synchronize(world.stream).ok());
    }
  }
  CHECK(wrong_without >= 100);
}

TEST_CASE("deferred: what a late copy reads is not poisoned by a later one that writes it") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Late world(seed);
    const Stream up = *world.device.CreateStream();
    Bytes block(kBytes, 5), page(kBytes, 1);
    const Bytes other(kBytes, 9);
    world.Copy(page, block, world.stream);
    const Event down_done = world.Record(world.stream);
    REQUIRE(world.device.Wait(up, down_done).ok());
    world.Copy(block, other, up);
    REQUIRE(world.device.Synchronize(up).ok());
    CHECK(All(page, 5));
    CHECK(All(block, 9));
  }
}

TEST_CASE("deferred: the copies of one call run in any order, and the same seed draws the same") {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::string order[2];
    for (std::string& text : order) {
      Late world(seed);
      const Bytes from(8 * kBytes, 7);
      Bytes to(8 * kBytes, 1);
      std::vector<BlockCopy> copies;
      for (std::size_t i = 0; i < 8; ++i) {
        copies.push_back({to.data() + i * kBytes, from.data() + i * kBytes, kBytes});
      }
      REQUIRE(world.device.backend().Copy(copies, world.stream).ok());
      const Stream other = *world.device.CreateStream();
      const Bytes some(kBytes, 7);
      Bytes unused(kBytes);
      for (int i = 0; i < 40; ++i) {  // each may let something stray
        world.Copy(unused, some, other);
        REQUIRE(world.device.Synchronize(other).ok());
        for (std::size_t c = 0; c < 8; ++c) text += to[c * kBytes] == 7 ? '1' : '0';
      }
      REQUIRE(world.device.Synchronize(world.stream).ok());
      CHECK(All(to, 7));
    }
    CHECK(order[0] == order[1]);
    orders.insert(order[0]);
  }
  CHECK(orders.size() > 15);
}

TEST_CASE("deferred: null is late too, without memory") {
  int late = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Device device = *Device::CreateDeferred(BackendKind::kNull, seed);
    const Stream stream = *device.CreateStream();
    const DeviceBuffer block = *device.Allocate(MemoryKind::kDevice, 4096);
    const DeviceBuffer page = *device.Allocate(MemoryKind::kPinnedHost, 4096);
    REQUIRE(device.CopyToHost(page.data(), block.data(), 4096, stream).ok());
    const Event event = *device.CreateEvent();
    REQUIRE(device.Record(event, stream).ok());
    late += !*device.Query(event);
    REQUIRE(device.Synchronize(stream).ok());
    CHECK(*device.Query(event));
  }
  CHECK(late >= 8);
}

}  // namespace
}  // namespace lariat
