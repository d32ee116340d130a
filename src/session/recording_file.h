// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lariat/model.h"
#include "lariat/safetensors.h"
#include "lariat/status.h"
#include "session/recording.h"

namespace lariat::session {

using Shape = std::vector<std::int64_t>;

std::string ShapeText(const Shape& shape);

// The tensors of one recording's file. Errors name the file, the tensor and what is expected.
class RecordingFile {
 public:
  RecordingFile(std::string path, SafetensorsFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  const SafetensorsFile& file() const { return file_; }
  Status Bad(const std::string& message) const { return InvalidArgument(path_ + ": " + message); }
  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }
  bool IsF32(const std::string& name) const;

  // A whole number of the metadata, from `least` to 2^31 - 1.
  Status ReadCount(const std::string& name, std::int64_t least, std::int64_t& value) const;
  // meaning: what the expected shape is, for the message.
  Status Check(const SafetensorsTensor& tensor, const Shape& expected,
               const std::string& meaning) const;
  // Checks and reads. REQUIRES: Has(name).
  Status Read(const std::string& name, const Shape& expected, const std::string& meaning,
              std::vector<double>& values);

 private:
  std::string path_;
  SafetensorsFile file_;
};

// Reads an MLA layer. layer: its number, spec and kept are set; k and v get what is compared, and
// mla all else. What cannot be compared goes to recording.missing.
Status ReadMlaLayer(RecordingFile& file, const ModelConfig& model, Recording& recording,
                    RecordedLayer& layer);

}  // namespace lariat::session
