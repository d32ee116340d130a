// SPDX-License-Identifier: Apache-2.0
// tiny_server: an HTTP server over Lariat (docs/server.md). It runs a small Llama on the CPU, with
// KVCache as its cache and Session as its scheduler. Token ids go in and come out.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "api.h"
#include "engine.h"
#include "http_server.h"
#include "llama.h"
#include "option_checks.h"

namespace {

using namespace lariat::examples;  // NOLINT: the example's own
using std::chrono::milliseconds;

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitBadUsage = 2;

struct Options {
  std::string model;
  std::uint64_t seed = 1;
  std::string host = "127.0.0.1";
  int port = 8080;
  EngineConfig engine;
  HttpLimits http;
  double timeout_s = 10;
  double grace_s = 10;
};

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--model", options.model,
                 "Folder with config.json and safetensors of a Llama; none: a tiny model that a "
                 "seed makes")
      ->check(lariat::tools::NotEmpty());
  app.add_option("--seed", options.seed, "Of the tiny model")
      ->check(lariat::tools::DecimalUint64())
      ->capture_default_str();
  app.add_option("--host", options.host, "Address to listen on")->capture_default_str();
  app.add_option("--port", options.port, "0: a free one, which is printed")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--blocks", options.engine.num_blocks, "Blocks of the cache")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--block-size", options.engine.block_size, "Tokens of a block")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--max-batch", options.engine.max_batch, "Requests that run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--step-tokens", options.engine.max_step_tokens,
                 "Rows of a step: decodes and chunks of prompts")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-length", options.engine.max_length,
                 "Tokens of prompt and answer; 0: the model's, at most 4096")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--max-connections", options.http.max_connections, "More are answered 503")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_option("--max-body", options.http.max_body, "Bytes of a request; more is answered 413")
      ->check(CLI::Range(1, 1 << 28))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_s,
                 "Seconds for a request to arrive, and for its answer to be taken")
      ->check(lariat::tools::NumberRange(0.1, 3600))
      ->capture_default_str();
  app.add_option("--grace", options.grace_s,
                 "Seconds that requests may still run after SIGINT or SIGTERM")
      ->check(lariat::tools::NumberRange(0, 3600))
      ->capture_default_str();
  app.footer("Exit codes: 0 stopped by a signal, 1 the server failed, 2 bad usage or input.");
}

int Complain(const std::string& what, int code = kExitBadUsage) {
  std::cerr << "tiny_server: " << what << std::endl;
  return code;
}

// A handler may do next to nothing, so it writes to a pipe, and a thread reads that. (To block the
// signals and wait for them is not enough: a BLAS has threads of its own before main begins.)
int signal_pipe[2] = {-1, -1};

extern "C" void OnSignal(int) {
  const int error = errno;
  (void)!::write(signal_pipe[1], "", 1);
  errno = error;
}

bool CatchSignals() {
  if (::pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  for (const int signal : {SIGINT, SIGTERM}) {
    if (std::signal(signal, OnSignal) == SIG_ERR) return false;
  }
  return std::signal(SIGPIPE, SIG_IGN) != SIG_ERR;
}

// Stops the server when a signal comes.
class SignalThread {
 public:
  SignalThread(HttpServer& server, Engine& engine, milliseconds grace)
      : thread_([this, &server, &engine, grace] { Run(server, engine, grace); }) {}
  ~SignalThread() {
    done_ = true;
    OnSignal(0);
    thread_.join();
  }

 private:
  // Whether one came within the time; -1: waits for it.
  static bool Wait(int wait) {
    pollfd poll_fd = {signal_pipe[0], POLLIN, 0};
    char byte = 0;
    return ::poll(&poll_fd, 1, wait) > 0 && ::read(signal_pipe[0], &byte, 1) == 1;
  }

  // The first signal: take no more, finish what runs. The second, or no more grace: cancel it.
  void Run(HttpServer& server, Engine& engine, milliseconds grace) {
    while (!Wait(-1)) {
    }
    if (done_) return;
    engine.Stop();
    server.Stop();
    const auto end = std::chrono::steady_clock::now() + grace;
    while (!engine.WaitIdle(milliseconds(20))) {
      if (Wait(0) || std::chrono::steady_clock::now() >= end) engine.CancelAll();
    }
  }

  std::atomic<bool> done_ = false;
  std::thread thread_;
};

int Serve(const Options& options, const Llama& model) {
  auto engine = Engine::Create(model, options.engine, [] { OnSignal(SIGTERM); });
  if (!engine.ok()) return Complain(engine.status().message());
  HttpServer server(options.http);
  AddRoutes(server, **engine);
  const int port = server.Bind(options.host, options.port);
  if (port <= 0) {
    return Complain(std::string("cannot listen on ")
                        .append(options.host)
                        .append(":")
                        .append(std::to_string(options.port))
                        .append(errno == 0 ? "" : std::string(": ") + std::strerror(errno)));
  }
  const SignalThread signals(server, **engine,
                             milliseconds(static_cast<int>(options.grace_s * 1000)));
  std::cout << "listening on http://" << options.host << ":" << port << std::endl;
  const bool served = server.Serve();
  const std::string failure = (*engine)->failure();
  if (!failure.empty()) return Complain(failure, kExitFailed);
  return served ? kExitOk : Complain("cannot accept connections any more", kExitFailed);
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app{"An HTTP server over Lariat, on the CPU: token ids in, token ids out"};
  AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return Complain(error.what());
  }
  options.http.timeout = milliseconds(static_cast<int>(options.timeout_s * 1000));

  if (!CatchSignals()) return Complain("cannot catch signals", kExitFailed);
  if (app.count("--model") == 0) return Serve(options, TinyLlama(options.seed));
  const lariat::Result<Llama> model = LoadLlama(options.model);
  if (!model.ok()) return Complain(model.status().message());
  for (const std::string& warning : model->warnings) Complain(warning);
  return Serve(options, *model);
}

}  // namespace

// The library throws nothing; CLI11, cpp-httplib and the standard library may.
int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::bad_alloc&) {
    return Complain("out of memory");
  } catch (const std::exception& error) {
    return Complain(error.what(), kExitFailed);
  }
}
