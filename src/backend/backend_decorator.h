// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace lariat {

// Passes every call on to another backend; a base for backends that change a few.
class BackendDecorator : public Backend {
 public:
  explicit BackendDecorator(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  BackendKind kind() const override { return inner_->kind(); }
  std::string name() const override { return inner_->name(); }
  bool has_memory() const override { return inner_->has_memory(); }
  int threads() const override { return inner_->threads(); }
  std::vector<std::string> Tuning() const override { return inner_->Tuning(); }
  Result<void*> Allocate(MemoryKind kind, std::size_t bytes) override {
    return inner_->Allocate(kind, bytes);
  }
  void Free(MemoryKind kind, void* memory, std::size_t bytes) noexcept override {
    inner_->Free(kind, memory, bytes);
  }
  Result<Stream> CreateStream() override { return inner_->CreateStream(); }
  void DestroyStream(Stream stream) noexcept override { inner_->DestroyStream(stream); }
  Status Synchronize(Stream stream) override { return inner_->Synchronize(stream); }
  Result<Event> CreateEvent() override { return inner_->CreateEvent(); }
  void DestroyEvent(Event event) noexcept override { inner_->DestroyEvent(event); }
  Status Record(Event event, Stream stream) override { return inner_->Record(event, stream); }
  Status Wait(Stream stream, Event event) override { return inner_->Wait(stream, event); }
  Result<bool> Query(Event event) override { return inner_->Query(event); }
  Status Copy(std::span<const BlockCopy> copies, Stream stream) override {
    return inner_->Copy(copies, stream);
  }
  Status Fill(void* dst, std::uint8_t value, std::size_t bytes, Stream stream) override {
    return inner_->Fill(dst, value, bytes, stream);
  }
  Status RopeUpdate(const RopeUpdateParams& params, Stream stream) override {
    return inner_->RopeUpdate(params, stream);
  }
  Status AppendRope(const AppendRopeParams& params, Stream stream) override {
    return inner_->AppendRope(params, stream);
  }
  Status BuildStepTables(const StepTablesParams& params, Stream stream) override {
    return inner_->BuildStepTables(params, stream);
  }
  Status Gemm(const GemmParams& params, Stream stream) override {
    return inner_->Gemm(params, stream);
  }
  Status WarmupGemm(const GemmParams& params, Stream stream) override {
    return inner_->WarmupGemm(params, stream);
  }
  std::int64_t GemmWorkspaceBytes() const override { return inner_->GemmWorkspaceBytes(); }
  Result<void*> Scratch(ScratchUse use, std::size_t bytes, Stream stream) override {
    return inner_->Scratch(use, bytes, stream);
  }
  bool FusedFits(const MlaCompressParams& params) const override {
    return inner_->FusedFits(params);
  }
  bool FusedIsFaster(const MlaCompressParams& params) const override {
    return inner_->FusedIsFaster(params);
  }
  Status MlaCompressFused(const MlaCompressParams& params, Stream stream) override {
    return inner_->MlaCompressFused(params, stream);
  }
  Status MlaAppendRows(const MlaAppendParams& params, Stream stream) override {
    return inner_->MlaAppendRows(params, stream);
  }
  Status MlaGather(const MlaGatherParams& params, Stream stream) override {
    return inner_->MlaGather(params, stream);
  }

 protected:
  Backend& inner() { return *inner_; }

 private:
  std::shared_ptr<Backend> inner_;
};

}  // namespace lariat
