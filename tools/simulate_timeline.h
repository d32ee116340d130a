// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_map>

#include "lariat/simulator.h"
#include "lariat/status.h"

namespace lariat::tools {

// Writes what happens in a simulation as Chrome's trace-event JSON, which Perfetto opens, as it
// happens: what is kept in memory is one word for each request under way. Whatever becomes of the
// run, the document is whole once Close was called.
class Timeline final : public SimulationObserver {
 public:
  Timeline() = default;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline() override { (void)Close(); }

  // Begins the document; "-" is stdout. A file that is there keeps what is in it until something
  // happens. Errors: kInvalidArgument: the file cannot be written.
  Status Open(const std::string& path);
  bool is_open() const { return file_ != nullptr; }
  // Leaves no document where nothing has happened; else no change.
  void Drop();
  // Ends it. Errors: kInvalidArgument: some of it could not be written.
  Status Close();

  void OnStep(const SimulatedStep& step, const Stats& cache, const SessionStats& session) override;
  void OnPhase(std::int64_t request, RequestPhase phase, double now_s) override;
  void OnTransfer(const TransferWork& work, double begin_s, double end_s) override;
  void OnDone(const RequestResult& result) override;

 private:
  void Write(const std::string& event);
  void Flush();
  void WriteMark(char phase, std::int64_t request, const char* name, std::int64_t ns,
                 const std::string& arguments = "");

  std::string path_;
  std::FILE* file_ = nullptr;
  bool failed_ = false;
  bool fresh_ = false;  // there was no such file
  bool begun_ = false;  // the file is the document's
  bool told_ = false;   // of something that happened
  bool first_ = true;
  std::string buffer_;
  std::unordered_map<std::int64_t, RequestPhase> phases_;  // of requests under way
};

}  // namespace lariat::tools
