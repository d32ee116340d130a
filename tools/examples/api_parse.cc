// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "api.h"

namespace lariat::examples {

namespace {

using Json = nlohmann::json;

// A value as a message shows it: short, on one line.
std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

Status Wrong(const std::string& field, const Json& value, const std::string& allowed) {
  return InvalidArgument(
      std::string(field).append(" = ").append(Shown(value)).append("; allowed: ").append(allowed));
}

bool ReadInteger(const Json& value, std::int64_t least, std::int64_t most, std::int64_t& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return false;
  }
  out = value.get<std::int64_t>();
  return out >= least && out <= most;
}

std::string Range(const char* what, std::int64_t least, std::int64_t most) {
  return std::string(what)
      .append(" in ")
      .append(std::to_string(least))
      .append("..")
      .append(std::to_string(most));
}

Status ReadTokens(const std::string& field, const Json& value, std::int64_t vocab,
                  std::vector<TokenId>& out) {
  if (!value.is_array()) return Wrong(field, value, "an array of token ids");
  out.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    std::int64_t token = 0;
    if (!ReadInteger(value[i], 0, vocab - 1, token)) {
      return Wrong(std::string(field).append("[").append(std::to_string(i)).append("]"), value[i],
                   Range("a whole number", 0, vocab - 1));
    }
    out.push_back(static_cast<TokenId>(token));
  }
  return Status::Ok();
}

Status ReadField(const std::string& name, const Json& value, std::int64_t vocab,
                 std::int64_t max_length, CompletionCall& call) {
  if (name == "prompt") return ReadTokens(name, value, vocab, call.job.prompt);
  if (name == "stop") return ReadTokens(name, value, vocab, call.job.stop);
  if (name == "max_tokens") {
    if (ReadInteger(value, 1, max_length, call.job.max_tokens)) return Status::Ok();
    return Wrong(name, value, Range("a whole number", 1, max_length));
  }
  if (name == "priority") {
    std::int64_t priority = 0;
    if (!ReadInteger(value, 0, kMaxPriority, priority)) {
      return Wrong(name, value, Range("a whole number", 0, kMaxPriority));
    }
    call.job.priority = static_cast<int>(priority);
    return Status::Ok();
  }
  if (name == "stream" || name == "logprobs") {
    if (!value.is_boolean()) return Wrong(name, value, "true, false");
    (name == "stream" ? call.stream : call.job.logprobs) = value.get<bool>();
    return Status::Ok();
  }
  if (name == "salt") {
    if (!value.is_string()) return Wrong(name, value, "a text");
    call.job.salt = value.get<std::string>();
    return Status::Ok();
  }
  return InvalidArgument("unknown field " + Shown(name) +
                         "; allowed: prompt, max_tokens, stream, stop, logprobs, salt, priority");
}

}  // namespace

Result<CompletionCall> ParseCompletion(const std::string& body, std::int64_t vocab,
                                       std::int64_t max_length) {
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::parse_error& error) {
    return InvalidArgument("invalid JSON at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {  // out_of_range: 1e400
    return InvalidArgument("invalid JSON: a number is too large");
  }
  if (!json.is_object()) return InvalidArgument("the body is " + Shown(json) + ", not an object");
  CompletionCall call;
  for (const auto& [name, value] : json.items()) {
    const Status read = ReadField(name, value, vocab, max_length, call);
    if (!read.ok()) return read;
  }
  if (call.job.prompt.empty()) return InvalidArgument("prompt is missing or empty");
  const std::int64_t length = std::ssize(call.job.prompt) + call.job.max_tokens;
  if (length > max_length) {
    return InvalidArgument("prompt and max_tokens: " + std::to_string(call.job.prompt.size()) +
                           " + " + std::to_string(call.job.max_tokens) +
                           " tokens; allowed: " + std::to_string(max_length) + " together");
  }
  return call;
}

}  // namespace lariat::examples
