// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "lariat/status.h"
#include "lariat/types.h"

namespace CLI {
class App;
}

// The subcommands of `lariat`, one file each. A command adds itself and, when it was asked for,
// leaves its exit code: 0 ok, 1 a check failed, 2 bad usage or input.
namespace lariat::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitBadUsage = 2;

void AddSimulate(CLI::App& app, int& exit_code);
void AddInspect(CLI::App& app, int& exit_code);
void AddVerify(CLI::App& app, int& exit_code);
void AddBench(CLI::App& app, int& exit_code);

// The value of a --backend option ("auto", "cpu", "cuda", "null"). LARIAT_BACKEND takes the place
// of auto, given or by default; a backend that the command line names stays. Errors:
// kInvalidArgument: another name, in either.
Result<BackendKind> ChooseBackend(const std::string& option);

// "8GiB", "1.1GiB", "80GB", "1e9", "4096": at least 1 byte, rounded down to whole bytes. Units are
// powers of 1024 with an i (KiB, MiB, GiB, TiB), of 1000 without, in any case.
// Errors: kInvalidArgument, saying what is allowed.
Result<std::int64_t> ParseSize(const std::string& text);

// Whether the file that `flag` names can be written, without touching it; "-" and none can. For
// before a long run. Errors: kInvalidArgument, naming the flag and why.
Status CheckOutput(const std::string& flag, const std::string& path);

// Writes a whole document; "-" is stdout.
// Errors: kInvalidArgument: the file cannot be written.
Status WriteText(const std::string& path, const std::string& text);

}  // namespace lariat::tools
