// SPDX-License-Identifier: Apache-2.0
#include "api.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#ifdef LARIAT_EXAMPLE_PROMETHEUS
#include <prometheus/text_serializer.h>

#include "metrics.h"
#endif

namespace lariat::examples {

namespace {

using Json = nlohmann::json;
using httplib::Request;
using httplib::Response;
using std::chrono::milliseconds;

constexpr std::string_view kCompletions = "/v1/completions";
constexpr std::string_view kPrefix = "cmpl-";  // of ids
// How long a client may be gone before that is seen.
constexpr milliseconds kLook{50};

void Answer(Response& response, const Json& body) {
  response.set_content(body.dump() + "\n", "application/json");
}

std::string IdText(std::uint64_t id) { return std::string(kPrefix) + std::to_string(id); }

// --- Before a body is read --------------------------------------------------------------------

// The methods of a path; empty: there is no such path.
std::string_view Methods(std::string_view path) {
  if (path == kCompletions) return "POST";
  if (path == "/healthz" || path == "/metrics") return "GET, HEAD";
  if (path.starts_with(std::string(kCompletions) + "/")) return "DELETE";
  return {};
}

// 0: the body may be read.
std::pair<int, std::string> CheckBody(const Request& request, std::size_t most) {
  const bool chunked = request.get_header_value("Transfer-Encoding") == "chunked";
  const std::string length = request.get_header_value("Content-Length");
  if (!chunked && request.has_header("Transfer-Encoding")) {
    return {501, "Transfer-Encoding: allowed: chunked"};
  }
  if (request.has_header("Content-Encoding")) {
    return {415, "Content-Encoding: not allowed, send the body as it is"};
  }
  if (request.get_header_value("Content-Type").starts_with("multipart/")) {
    return {415, "Content-Type: allowed: application/json"};
  }
  if (chunked && !length.empty()) return {400, "Content-Length beside Transfer-Encoding"};
  if (chunked) return {0, {}};
  if (length.empty()) return {411, "Content-Length is missing"};
  std::size_t bytes = 0;
  const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), bytes);
  if (error == std::errc::result_out_of_range || (error == std::errc() && bytes > most)) {
    return {413, std::string("the body is too large; allowed: ")
                     .append(std::to_string(most))
                     .append(" bytes")};
  }
  if (error != std::errc() || end != length.data() + length.size() ||
      request.get_header_value_count("Content-Length") != 1) {
    return {400, "Content-Length is no number"};
  }
  return {0, {}};
}

httplib::Server::HandlerResponse Route(const HttpServer& server, const Request& request,
                                       Response& response) {
  using httplib::Server;
  const std::string_view methods = Methods(request.path);
  if (methods.empty()) {
    HttpServer::Error(response, 404,
                      "no such path; there are POST /v1/completions, DELETE /v1/completions/ID, "
                      "GET /healthz, GET /metrics");
    return Server::HandlerResponse::Handled;
  }
  if ((", " + std::string(methods) + ",").find(" " + request.method + ",") == std::string::npos) {
    response.set_header("Allow", std::string(methods));
    HttpServer::Error(response, 405,
                      std::string("this path answers ").append(methods).append(" alone"));
    return Server::HandlerResponse::Handled;
  }
  if (request.method == "POST") {
    const auto [status, why] = CheckBody(request, server.limits().max_body);
    if (status != 0) {
      HttpServer::Error(response, status, why);
      return Server::HandlerResponse::Handled;
    }
    HttpServer::Current().AllowBody();
  } else if (request.has_header("Transfer-Encoding") ||
             (request.has_header("Content-Length") &&
              request.get_header_value("Content-Length") != "0")) {
    HttpServer::Error(response, 400, "this request has a body, and none is expected");
    return Server::HandlerResponse::Handled;
  }
  return Server::HandlerResponse::Unhandled;
}

// False: answered with what was wrong.
bool ReadBody(const HttpServer& server, Response& response, const httplib::ContentReader& reader,
              std::string& body) {
  const std::size_t most = server.limits().max_body;
  bool too_large = false;
  const bool read = reader([&](const char* data, std::size_t size) {
    too_large = size > most - body.size();
    if (!too_large) body.append(data, size);
    return !too_large;
  });
  if (too_large || HttpServer::Current().too_large()) {
    HttpServer::Error(response, 413,
                      std::string("the body is too large; allowed: ")
                          .append(std::to_string(most))
                          .append(" bytes"));
    return false;
  }
  if (HttpServer::Current().timed_out()) {
    HttpServer::Error(response, 408, "the body did not arrive in time");
    return false;
  }
  if (!read) HttpServer::Error(response, 400, "the body ends before its length");
  return read;
}

// --- Completions ------------------------------------------------------------------------------

// How an answer ended, or nothing and an HTTP error.
const char* FinishReason(const Job& job, const RequestResult& result) {
  switch (result.outcome) {
    case Outcome::kFinished:
      return result.output_tokens < job.request().max_tokens ? "stop" : "length";
    case Outcome::kCancelled: return "cancelled";
    case Outcome::kMaxLength:
    case Outcome::kNeverFits: break;
  }
  return nullptr;
}

Json Ending(const Job& job, const RequestResult& result) {
  return {{"id", IdText(job.id())},
          {"finish_reason", FinishReason(job, result)},
          {"usage",
           {{"prompt_tokens", result.prompt_tokens},
            {"completion_tokens", result.output_tokens},
            {"cached_tokens", result.hit_tokens},
            {"recomputed_tokens", result.recomputed_tokens},
            {"preemptions", result.preemptions}}}};
}

// True: the job has ended in an error, or was refused; answered.
bool AnswerFailure(const Job& job, const Job::Progress& end, Response& response) {
  if (end.state == Job::State::kFailed) {
    HttpServer::Error(response, 500, end.error);
    return true;
  }
  if (FinishReason(job, end.result) != nullptr) return false;
  HttpServer::Error(response, 400,
                    end.result.outcome == Outcome::kNeverFits
                        ? "prompt and max_tokens need more blocks than the cache has"
                        : "prompt and max_tokens are longer than allowed");
  return true;
}

void AnswerWhole(Engine& engine, Job& job, Response& response) {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  bool gone = false;
  for (;;) {
    const Job::Progress news = job.Wait(tokens.size(), kLook);
    tokens.insert(tokens.end(), news.tokens.begin(), news.tokens.end());
    logprobs.insert(logprobs.end(), news.logprobs.begin(), news.logprobs.end());
    if (news.state != Job::State::kRunning) {
      if (AnswerFailure(job, news, response)) return;
      Json body = Ending(job, news.result);
      body["tokens"] = tokens;
      if (job.request().logprobs) body["logprobs"] = logprobs;
      if (gone) HttpServer::Current().CloseAfterAnswer();
      Answer(response, body);
      return;
    }
    if (!gone && HttpServer::Current().PeerClosed()) {
      gone = true;
      engine.Cancel(job.id());
    }
  }
}

// All in one call of the content provider: between two calls the library looks whether the server
// stops, and would break the stream off.
bool WriteStream(Engine& engine, Job& job, httplib::DataSink& sink) {
  const auto event = [&](const Json& data) {
    const std::string text = "data: " + data.dump() + "\n\n";
    return sink.write(text.data(), text.size());
  };
  bool alive = event({{"id", IdText(job.id())}});
  std::size_t seen = 0;
  for (;;) {
    const Job::Progress news = job.Wait(seen, kLook);
    seen += news.tokens.size();
    if (alive && !news.tokens.empty()) {
      Json data = {{"tokens", news.tokens}};
      if (job.request().logprobs) data["logprobs"] = news.logprobs;
      alive = event(data);
    }
    if (alive && HttpServer::Current().PeerClosed()) alive = false;
    if (news.state == Job::State::kRunning) {
      if (!alive) engine.Cancel(job.id());  // till it has ended: then nothing of it is left
      continue;
    }
    if (!alive) return false;
    if (news.state == Job::State::kFailed) {
      event({{"error", news.error}});
    } else if (FinishReason(job, news.result) == nullptr) {
      event({{"error", "prompt and max_tokens need more than the cache has"}});
    } else {
      event(Ending(job, news.result));
    }
    constexpr std::string_view kDone = "data: [DONE]\n\n";
    sink.write(kDone.data(), kDone.size());
    sink.done();
    return true;
  }
}

void Complete(const HttpServer& server, Engine& engine, Response& response,
              const httplib::ContentReader& reader) {
  std::string body;
  if (!ReadBody(server, response, reader, body)) return;
  Result<CompletionCall> call =
      ParseCompletion(body, engine.shape().vocab, engine.config().max_length);
  if (!call.ok()) return HttpServer::Error(response, 400, call.status().message());
  const std::shared_ptr<Job> job = engine.Submit(std::move(call->job));
  if (job == nullptr) return HttpServer::Error(response, 503, "the server stops");
  response.status = 200;
  if (!call->stream) return AnswerWhole(engine, *job, response);
  response.set_header("Cache-Control", "no-store");
  response.set_chunked_content_provider("text/event-stream",
                                        [&engine, job](std::size_t, httplib::DataSink& sink) {
                                          return WriteStream(engine, *job, sink);
                                        });
}

void Cancel(Engine& engine, const Request& request, Response& response) {
  const std::string text = request.path.substr(kCompletions.size() + 1);
  std::uint64_t id = 0;
  bool known = text.starts_with(kPrefix);
  if (known) {
    const char* const begin = text.data() + kPrefix.size();
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(begin, end, id);
    known = error == std::errc() && rest == end && engine.Cancel(id);
  }
  if (!known) return HttpServer::Error(response, 404, "no completion under way has this id");
  Answer(response, {{"id", text}, {"cancelled", true}});
}

// --- The rest ---------------------------------------------------------------------------------

void Health(Engine& engine, Response& response) {
  const std::string failure = engine.failure();
  if (!failure.empty()) return HttpServer::Error(response, 503, failure);
  const EngineStats stats = engine.GetStats();
  Answer(response, {{"status", "ok"}, {"running", stats.running}, {"waiting", stats.waiting}});
}

#ifdef LARIAT_EXAMPLE_PROMETHEUS
void Metrics(const HttpServer& server, Engine& engine, Response& response) {
  const EngineStats stats = engine.GetStats();
  std::vector<prometheus::MetricFamily> families = ToPrometheus(stats.cache);
  for (auto& family : ToPrometheus(stats.session, stats.waiting, stats.running)) {
    families.push_back(std::move(family));
  }
  // The server's own.
  prometheus::ClientMetric connections, refused;
  connections.gauge.value = server.connections();
  refused.counter.value = static_cast<double>(server.refused_connections());
  families.push_back({"lariat_server_connections",
                      "Connections that are served.",
                      prometheus::MetricType::Gauge,
                      {connections}});
  families.push_back({"lariat_server_refused_connections_total",
                      "Connections beyond the limit, answered 503.",
                      prometheus::MetricType::Counter,
                      {refused}});
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  response.set_content(text.str(), "text/plain; version=0.0.4; charset=utf-8");
}
#else
void Metrics(const HttpServer&, Engine&, Response& response) {
  HttpServer::Error(response, 501, "this server was built without prometheus-cpp");
}
#endif

}  // namespace

void AddRoutes(HttpServer& server, Engine& engine) {
  server.set_pre_routing_handler([&server](const Request& request, Response& response) {
    return Route(server, request, response);
  });
  server.Post(std::string(kCompletions),
              [&](const Request&, Response& response, const httplib::ContentReader& reader) {
                Complete(server, engine, response, reader);
              });
  server.Delete(std::string(kCompletions) + "/.*", [&](const Request& request, Response& response) {
    Cancel(engine, request, response);
  });
  server.Get("/healthz", [&](const Request&, Response& response) { Health(engine, response); });
  server.Get("/metrics",
             [&](const Request&, Response& response) { Metrics(server, engine, response); });
}

}  // namespace lariat::examples
