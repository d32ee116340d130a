// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "engine.h"
#include "http_server.h"
#include "lariat/status.h"

namespace lariat::examples {

// Reads the body of POST /v1/completions.
struct CompletionCall {
  JobRequest job;
  bool stream = false;
};
// max_length: of prompt and answer together. Errors: kInvalidArgument: one line, naming the field.
Result<CompletionCall> ParseCompletion(const std::string& body, std::int64_t vocab,
                                       std::int64_t max_length);

// Adds the routes (docs/server.md) to a server. Both must outlive its Serve.
void AddRoutes(HttpServer& server, Engine& engine);

}  // namespace lariat::examples
