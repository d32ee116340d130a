// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: JSON of the form
//   {"__metadata__": {string: string, ...}, NAME: {"dtype": .., "shape": [..],
//    "data_offsets": [begin, end]}, ...}
// It is read as a stream of events and never becomes a tree: whatever does not fit the form stops
// the parser at once, so that neither deep nesting nor large arrays cost more than their text.
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lariat/safetensors.h"

namespace lariat {
namespace {

using Json = nlohmann::json;

struct TypeEntry {
  std::string_view name;
  std::int64_t size;
};

// By SafetensorsType.
constexpr std::array<TypeEntry, 15> kTypes = {{{"BOOL", 1},
                                               {"U8", 1},
                                               {"I8", 1},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1},
                                               {"U16", 2},
                                               {"I16", 2},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"U32", 4},
                                               {"I32", 4},
                                               {"F32", 4},
                                               {"U64", 8},
                                               {"I64", 8},
                                               {"F64", 8}}};
static_assert(kTypes.size() == static_cast<std::size_t>(SafetensorsType::kF64) + 1);

// Text of the file inside a message: quoted, and no longer than one can read.
std::string Quote(std::string_view text) {
  constexpr std::size_t kMost = 80;
  std::string quoted(1, '\'');
  quoted.append(text.substr(0, kMost)).append(text.size() > kMost ? "...'" : "'");
  return quoted;
}

// Turns the parser's events into a SafetensorsHeader. An event that does not fit sets status() and
// stops the parser.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  const Status& status() const { return status_; }
  SafetensorsHeader& header() { return header_; }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart: place_ = Place::kTop; return true;
      case Place::kMetadataValue: place_ = Place::kMetadata; return true;
      case Place::kTensorValue:
        place_ = Place::kTensor;
        has_dtype_ = has_shape_ = has_offsets_ = false;
        return true;
      default: return Misplaced("an object");
    }
  }

  bool end_object() override {
    if (place_ == Place::kTensor) return EndTensor();
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool key(string_t& text) override {
    if (place_ == Place::kTop) {
      tensor_ = {};
      tensor_.name = text;
      place_ = text == "__metadata__" ? Place::kMetadataValue : Place::kTensorValue;
      if (!names_.insert(text).second) return Fail(Where() + ": the name occurs twice");
      return true;
    }
    field_ = text;
    if (place_ == Place::kMetadata) {
      if (header_.metadata.count(text) == 0) return true;
      return Fail("__metadata__: the key " + Quote(text) + " occurs twice");
    }
    return TensorField();
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(field_, std::move(text));
      return true;
    }
    if (place_ != Place::kDtype) return Misplaced("the string " + Quote(text));
    const auto* entry = std::find_if(kTypes.begin(), kTypes.end(),
                                     [&](const TypeEntry& e) { return e.name == text; });
    if (entry == kTypes.end()) return Fail(Where() + ": " + Quote(text) + " is not a known type");
    tensor_.type = static_cast<SafetensorsType>(entry - kTypes.begin());
    place_ = Place::kTensor;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kShape) {
      place_ = Place::kShapeItems;
    } else if (place_ == Place::kOffsets) {
      place_ = Place::kOffsetsItems;
      num_offsets_ = 0;
    } else {
      return Misplaced("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsetsItems && num_offsets_ != 2) {
      return Fail(Where() + " has " + std::to_string(num_offsets_) + " numbers; allowed: 2");
    }
    place_ = Place::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShapeItems && place_ != Place::kOffsetsItems) {
      return Misplaced("the number " + std::to_string(value));
    }
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return Fail(Where() + " holds " + std::to_string(value) + "; allowed: below 2^63");
    }
    const auto number = static_cast<std::int64_t>(value);
    if (place_ == Place::kShapeItems) {
      tensor_.shape.push_back(number);
      return true;
    }
    if (num_offsets_ == 2) return Fail(Where() + " has more than 2 numbers");
    (num_offsets_ == 0 ? tensor_.begin : tensor_.end) = number;
    ++num_offsets_;
    return true;
  }

  bool number_integer(number_integer_t value) override {
    return Misplaced("the number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Misplaced("the number " + Quote(text));
  }
  bool null() override { return Misplaced("null"); }
  bool boolean(bool value) override { return Misplaced(value ? "true" : "false"); }
  bool binary(binary_t&) override { return Misplaced("binary data"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail("no valid JSON at byte " + std::to_string(position) + " of the header");
  }

 private:
  enum class Place : std::uint8_t {
    kStart,          // before the header's object
    kTop,            // between its members
    kMetadataValue,  // behind the key __metadata__
    kMetadata,
    kTensorValue,  // behind a tensor's name
    kTensor,       // between a tensor's fields
    kDtype,        // behind a field's name
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetsItems,
    kEnd,
  };

  bool Fail(std::string message) {
    if (status_.ok()) status_ = CorruptData(std::move(message));
    return false;
  }

  bool Misplaced(std::string_view what) {
    constexpr std::string_view kAllowed[] = {"an object",
                                             "a member",
                                             "an object of strings",
                                             "strings",
                                             "an object",
                                             "a known field",
                                             "a string",
                                             "an array of integers",
                                             "integers >= 0, below 2^63",
                                             "an array of 2 integers",
                                             "integers >= 0, below 2^63",
                                             "the end"};
    return Fail(Where() + ": " + std::string(what) + " is out of place; allowed: " +
                std::string(kAllowed[static_cast<std::size_t>(place_)]));
  }

  // The part of the header that is being read, for a message.
  std::string Where() const {
    switch (place_) {
      case Place::kStart:
      case Place::kTop:
      case Place::kEnd: return "header";
      case Place::kMetadataValue: return "__metadata__";
      case Place::kMetadata: return "__metadata__ " + Quote(field_);
      case Place::kTensorValue:
      case Place::kTensor: return "tensor " + Quote(tensor_.name);
      default: return "tensor " + Quote(tensor_.name) + ": " + field_;
    }
  }

  bool TensorField() {
    bool* seen = nullptr;
    if (field_ == "dtype") {
      place_ = Place::kDtype;
      seen = &has_dtype_;
    } else if (field_ == "shape") {
      place_ = Place::kShape;
      seen = &has_shape_;
    } else if (field_ == "data_offsets") {
      place_ = Place::kOffsets;
      seen = &has_offsets_;
    } else {
      return Fail(Where() + ": " + Quote(field_) +
                  " is not a known field; allowed: dtype, shape, data_offsets");
    }
    if (*seen) return Fail(Where() + " occurs twice");
    *seen = true;
    return true;
  }

  bool EndTensor() {
    const char* missing = !has_dtype_     ? "dtype"
                          : !has_shape_   ? "shape"
                          : !has_offsets_ ? "data_offsets"
                                          : nullptr;
    if (missing != nullptr) return Fail(Where() + ": " + missing + " is missing");
    if (tensor_.begin > tensor_.end) {
      return Fail(Where() + ": data_offsets [" + std::to_string(tensor_.begin) + ", " +
                  std::to_string(tensor_.end) + "] end before they begin");
    }
    std::int64_t bytes = 0;
    tensor_.elements = 1;
    bool fits = true;
    for (const std::int64_t size : tensor_.shape) {
      fits = fits && !__builtin_mul_overflow(tensor_.elements, size, &tensor_.elements);
    }
    fits = fits &&
           !__builtin_mul_overflow(tensor_.elements, SafetensorsTypeSize(tensor_.type), &bytes);
    if (!fits) return Fail(Where() + ": shape has 2^63 bytes or more");
    if (tensor_.end - tensor_.begin != bytes) {
      return Fail(Where() + ": data_offsets span " + std::to_string(tensor_.end - tensor_.begin) +
                  " bytes; shape and dtype need " + std::to_string(bytes));
    }
    header_.tensors.push_back(std::move(tensor_));
    place_ = Place::kTop;
    return true;
  }

  Place place_ = Place::kStart;
  std::string field_;         // of the tensor, or key of the metadata
  SafetensorsTensor tensor_;  // being read
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int num_offsets_ = 0;
  std::set<std::string> names_;
  SafetensorsHeader header_;
  Status status_;
};

// The tensors, in order of their data, must follow each other from 0 to data_bytes.
Status CheckLayout(const std::vector<SafetensorsTensor>& tensors, std::int64_t data_bytes) {
  std::int64_t expected = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::string where = "tensor " + Quote(tensor.name) + ": data_offsets ";
    if (tensor.end > data_bytes) {
      return CorruptData(where + "end at " + std::to_string(tensor.end) + ", behind the " +
                         std::to_string(data_bytes) + " bytes of data");
    }
    if (tensor.begin != expected) {
      return CorruptData(where + "begin at " + std::to_string(tensor.begin) +
                         (tensor.begin < expected ? ", an overlap: " : ", a hole: ") +
                         "the tensor before ends at " + std::to_string(expected));
    }
    expected = tensor.end;
  }
  if (expected == data_bytes) return Status::Ok();
  return CorruptData("the tensors end at byte " + std::to_string(expected) + " of " +
                     std::to_string(data_bytes) + " bytes of data");
}

}  // namespace

std::string_view SafetensorsTypeName(SafetensorsType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::int64_t SafetensorsTypeSize(SafetensorsType type) {
  return kTypes[static_cast<std::size_t>(type)].size;
}

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, std::int64_t data_bytes) {
  // The format asks for it; it also keeps out a byte order mark, which the parser would skip.
  if (json.empty() || json.front() != '{') return CorruptData("header: it must begin with {");
  HeaderReader reader;
  Json::sax_parse(json.begin(), json.end(), &reader);
  if (!reader.status().ok()) return reader.status();
  SafetensorsHeader header = std::move(reader.header());
  // An empty tensor stands before the one that begins where it does.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  if (Status s = CheckLayout(header.tensors, data_bytes); !s.ok()) return s;
  return header;
}

}  // namespace lariat
