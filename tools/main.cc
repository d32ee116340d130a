// SPDX-License-Identifier: Apache-2.0
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <new>

#include "commands.h"

namespace {

int Run(int argc, char** argv) {
  // Results go to stdout, everything else to stderr.
  spdlog::set_default_logger(spdlog::stderr_color_mt("lariat"));
  spdlog::set_pattern("%n: %^%l%$: %v");

  CLI::App app{"The embeddable KV cache for LLM inference: simulator and benchmarks", "lariat"};
  app.set_version_flag("--version", LARIAT_VERSION);
  app.require_subcommand(0, 1);  // none: the help says more than an error
  app.footer(
      "Exit codes: 0 ok, 1 a check failed, 2 bad usage or input. LARIAT_BACKEND takes the place "
      "of\n"
      "--backend auto.");
  int exit_code = lariat::tools::kExitOk;
  lariat::tools::AddSimulate(app, exit_code);
  lariat::tools::AddInspect(app, exit_code);
  lariat::tools::AddVerify(app, exit_code);
#ifdef LARIAT_HAVE_BENCH
  lariat::tools::AddBench(app, exit_code);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    spdlog::error("{}; --help says what there is", error.what());
    return lariat::tools::kExitBadUsage;
  }
  if (app.get_subcommands().empty()) {
    std::cerr << app.help();
    return lariat::tools::kExitBadUsage;
  }
  return exit_code;
}

}  // namespace

// The library throws nothing; CLI11, spdlog and the standard library may.
int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::bad_alloc&) {
    spdlog::error("out of memory on the host");
    return lariat::tools::kExitBadUsage;
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return lariat::tools::kExitBadUsage;
  }
}
