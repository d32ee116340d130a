// SPDX-License-Identifier: Apache-2.0
#include "bench_shape.h"

#include <algorithm>
#include <charconv>
#include <set>

namespace lariat::tools {
namespace {

std::string_view StyleName(RopeStyle style) {
  return style == RopeStyle::kHalf ? "half" : "interleaved";
}

// Reads a value through the type that the field has; false where it is not one.
struct Reader {
  std::string_view text;
  std::int64_t min, max;

  bool operator()(std::int64_t* value) const {
    std::int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || rest != end || number < min || number > max) return false;
    *value = number;
    return true;
  }
  bool operator()(DType* value) const {
    for (const DType dtype : {DType::kFP32, DType::kFP16, DType::kBF16, DType::kFP64}) {
      if (text != DTypeName(dtype)) continue;
      *value = dtype;
      return true;
    }
    return false;
  }
  bool operator()(Choice* value) const {
    const auto found = std::find(value->words.begin(), value->words.end(), text);
    if (found == value->words.end()) return false;
    value->value = static_cast<int>(found - value->words.begin());
    return true;
  }
  bool operator()(RopeStyle* value) const {
    for (const RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
      if (text != StyleName(style)) continue;
      *value = style;
      return true;
    }
    return false;
  }
};

struct Writer {
  std::string operator()(const std::int64_t* value) const { return std::to_string(*value); }
  std::string operator()(const DType* value) const { return std::string(DTypeName(*value)); }
  std::string operator()(const RopeStyle* value) const { return std::string(StyleName(*value)); }
  std::string operator()(const Choice* value) const {
    return std::string(value->words[static_cast<std::size_t>(value->value)]);
  }
};

std::string Allowed(const ShapeField& field) {
  if (std::holds_alternative<DType*>(field.value)) return "fp32, fp16, bf16, fp64";
  if (std::holds_alternative<RopeStyle*>(field.value)) return "half, interleaved";
  if (const auto* const choice = std::get_if<Choice*>(&field.value)) {
    std::string words;
    for (const std::string_view word : (*choice)->words) {
      if (!words.empty()) words += ", ";
      words.append(word);
    }
    return words;
  }
  return std::to_string(field.min) + ".." + std::to_string(field.max);
}

const ShapeField* Find(std::string_view key, std::span<const ShapeField> fields) {
  for (const ShapeField& field : fields) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

}  // namespace

Status ReadShape(std::string_view text, std::span<const ShapeField> fields) {
  std::set<std::string_view> seen;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(item.size() == text.size() ? item.size() : item.size() + 1);
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const ShapeField* const field = Find(key, fields);
    if (field == nullptr || equals == std::string_view::npos) {
      std::string keys;
      for (const ShapeField& known : fields) {
        if (!keys.empty()) keys += ", ";
        keys.append(known.key);
      }
      return InvalidArgument("--shape: " + std::string(item) + "; allowed: KEY=VALUE of " + keys);
    }
    if (!seen.insert(key).second) {
      return InvalidArgument("--shape: " + std::string(key) + " is given twice");
    }
    if (!std::visit(Reader{item.substr(equals + 1), field->min, field->max}, field->value)) {
      return InvalidArgument("--shape: " + std::string(item) + "; allowed: " + Allowed(*field));
    }
  }
  return Status::Ok();
}

std::string ShapeText(std::span<const ShapeField> fields) {
  std::string text;
  for (const ShapeField& field : fields) {
    if (field.key == "dtype") continue;
    if (!text.empty()) text += ',';
    text.append(field.key).append("=").append(std::visit(Writer{}, field.value));
  }
  return text;
}

}  // namespace lariat::tools
