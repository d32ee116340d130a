// SPDX-License-Identifier: Apache-2.0
// Compares a document of `lariat inspect` with a row of what a reader must understand of a config.
#pragma once
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "support/catch.h"

namespace lariat::test {

using Json = nlohmann::json;

// Numbers agree within 1e-11, which is what rows of 12 digits tell; integers and texts exactly.
inline bool Agree(const Json& a, const Json& b) {
  if (a.is_number_float() || b.is_number_float()) {
    if (!a.is_number() || !b.is_number()) return false;
    const double x = a.get<double>();
    const double y = b.get<double>();
    return std::fabs(x - y) <= 1e-11 * std::fabs(y);
  }
  if (a.is_array() && b.is_array()) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), Agree);
  }
  return a == b;
}

// The group of a kind; the first one.
inline Json GroupOf(const Json& document, const std::string& kind) {
  for (const Json& group : document.at("groups")) {
    if (group.at("kind") == kind) return group;
  }
  return Json::object({{"kv_heads", nullptr}, {"head_dim", nullptr}, {"v_head_dim", nullptr}});
}

// The rope of the layers that the document's own rope_type stands for.
inline Json MainRope(const Json& document) {
  for (const Json& group : document.at("groups")) {
    const Json& rope = group.at("rope");
    if (!rope.is_null() && rope.at("rope_type") == document.at("rope_type") &&
        rope.at("rope_theta") == document.at("rope_theta")) {
      return rope;
    }
  }
  return nullptr;
}

// What the document says under the name that the rows use.
inline Json Lookup(const Json& document, const std::string& name) {
  if (name == "rope_attention_factor") return document.at("attention_factor");
  if (name == "kv_bytes_per_token_bf16") return document.at("kv_bytes_per_token");
  if (name == "rope_scaling") return MainRope(document);
  if (name == "kv_layers") {
    Json layers = Json::array();
    for (const Json& group : document.at("groups")) {
      if (group.at("kind") == "linear") continue;
      layers.insert(layers.end(), group.at("layers").begin(), group.at("layers").end());
    }
    return layers;
  }
  if (name == "full_layer_rotary_dim") return GroupOf(document, "full").at("rope").at("rotary_dim");
  for (const std::string kind : {"full", "sliding"}) {
    const std::string prefix = kind + "_layer_";
    if (name.rfind(prefix, 0) == 0) {
      return GroupOf(document, kind).at(name.substr(prefix.size()));
    }
  }
  return document.at(name);
}

// Rows say these of themselves, not of the model.
inline bool IsNote(const std::string& name) {
  return name == "file" || name == "notes" || name == "formula" || name == "uniform" ||
         name == "rope_type_in_file";
}

inline void CheckExpected(const Json& row, const Json& document) {
  for (const auto& [name, want] : row.items()) {
    if (IsNote(name)) continue;
    const Json got = Lookup(document, name);
    CAPTURE(name, got.dump(), want.dump());
    if (want.is_object()) {
      // Every member that the row names.
      for (const auto& [member, value] : want.items()) {
        CAPTURE(member);
        if (member == "extra_bytes_per_token_bf16") {
          CHECK(value == got.at("layers_with_index_cache").size() *
                             got.at("index_head_dim").get<std::size_t>() * 2);
        } else {
          CHECK(Agree(got.at(member), value));
        }
      }
    } else if (name == "rope_scaling") {
      // None: a default rope, which shows no more than its theta.
      CHECK((got.is_null() || !got.contains("original_max_position_embeddings")));
    } else {
      CHECK(Agree(got, want));
    }
  }
}

// Each layer stands in one group, and the lists of layers say what the groups say.
inline void CheckGroups(const Json& document) {
  std::multiset<int> layers;
  for (const Json& group : document.at("groups")) {
    for (const Json& layer : group.at("layers")) layers.insert(layer.get<int>());
  }
  std::multiset<int> all;
  for (int i = 0; i < document.at("layers").get<int>(); ++i) all.insert(i);
  CHECK(layers == all);
}

}  // namespace lariat::test
