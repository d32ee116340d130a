// SPDX-License-Identifier: Apache-2.0
// "in=1024,out=256,n=1000,prefix=512" -> a Trace.
#include <array>
#include <limits>
#include <optional>

#include "session/trace_builder.h"

namespace lariat {
namespace {

using session::NotAllowed;
using session::NumberText;
using session::Quoted;

constexpr std::int64_t kMaxRequests = 10'000'000;
constexpr std::int64_t kIds = std::int64_t{std::numeric_limits<TokenId>::max()} + 1;

struct Key {
  std::string_view name;
  std::int64_t low;
  std::int64_t high;
  bool required;
  std::optional<std::int64_t> value;
};

Status Refuse(std::string_view field, std::string_view problem) {
  return InvalidArgument("workload: " + std::string(field) + " " + std::string(problem));
}

Status Take(std::string_view part, std::array<Key, 4>& keys) {
  const std::size_t equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  for (Key& key : keys) {
    if (key.name != name) continue;
    if (key.value) return Refuse(name, "appears twice");
    const std::string_view text =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    std::int64_t value = 0;
    const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || stop != text.data() + text.size() || value < key.low ||
        value > key.high) {
      return Refuse(name, NotAllowed(Quoted(text), "a whole number in " + NumberText(key.low) +
                                                       ".." + NumberText(key.high)));
    }
    key.value = value;
    return Status::Ok();
  }
  return Refuse("key",
                NotAllowed(Quoted(name), "in, out, n, prefix, as in in=1024,out=256,n=1000"));
}

}  // namespace

Result<Trace> MakeWorkload(std::string_view spec, std::uint64_t seed) {
  std::array<Key, 4> keys = {{{"in", 1, kMaxRequestTokens, true, {}},
                              {"out", 1, kMaxRequestTokens, true, {}},
                              {"n", 1, kMaxRequests, true, {}},
                              {"prefix", 0, kMaxRequestTokens, false, {}}}};
  for (std::string_view rest = spec;;) {
    const std::size_t comma = rest.find(',');
    if (Status s = Take(rest.substr(0, comma), keys); !s.ok()) return s;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  for (const Key& key : keys) {
    if (key.required && !key.value) return Refuse(key.name, "is missing");
  }
  const std::int64_t input = *keys[0].value, output = *keys[1].value, count = *keys[2].value;
  const std::int64_t prefix = keys[3].value.value_or(0);
  if (prefix > input) {
    return Refuse("prefix", NotAllowed(NumberText(prefix), "0..in, which is " + NumberText(input)));
  }
  if (prefix + count * (input - prefix) > kIds) {
    return Refuse("n", NotAllowed(NumberText(count), "at most 2^31 distinct prompt tokens"));
  }
  if (count * output > kIds) {
    return Refuse("n", NotAllowed(NumberText(count), "at most 2^31 output tokens"));
  }
  return session::TraceBuilder::Workload(spec, input, output, count, prefix, seed);
}

}  // namespace lariat
