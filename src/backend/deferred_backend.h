// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>

#include "backend/backend.h"

namespace lariat {

// A backend that runs every call at once, but for copies on streams made by CreateStream: those are
// as late as a device's may be. Such a copy runs when something waits for it: Synchronize, other
// work on its stream, a stream that runs at once and waits for an event behind it, or the host,
// that has asked such an event up to three times. Meanwhile copies of other streams may be drawn
// too; the copies of one call run one by one, in any order. From the call on until it runs, what a
// copy will write is poisoned (0xFF bytes, NaN in every type), unless a copy that has not run
// either still reads it: whoever reads it too early sees that, and so does what is overwritten too
// early.
//
// Streams that it did not make, the default one above all, run at once. A server whose steps are on
// such a stream has late tier copies and nothing else.
//   inner: runs every call at once (cpu, null); without memory nothing is poisoned
//   seed: of all that is drawn
// Threads: as Backend.
std::shared_ptr<Backend> MakeDeferredBackend(std::shared_ptr<Backend> inner, std::uint64_t seed);

}  // namespace lariat
