// SPDX-License-Identifier: Apache-2.0
#include "support/count_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> count{0};
thread_local std::int64_t left = -1;  // calls until they fail; -1: they do not

void* Counted(std::size_t bytes) noexcept {
  ++count;
  if (left == 0) return nullptr;
  if (left > 0) --left;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* CountedOrThrow(std::size_t bytes) {
  if (void* memory = Counted(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// All forms but the aligned ones: a sanitizer brings its own of each that is left out, and new and
// delete must fit together.
void* operator new(std::size_t bytes) { return CountedOrThrow(bytes); }
void* operator new[](std::size_t bytes) { return CountedOrThrow(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return Counted(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return Counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace lariat::testing {

std::int64_t CountOfNew() { return count; }

FailNewAfter::FailNewAfter(std::int64_t count) { left = count; }
FailNewAfter::~FailNewAfter() { left = -1; }

}  // namespace lariat::testing
