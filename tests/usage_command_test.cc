// SPDX-License-Identifier: Apache-2.0
// What `lariat simulate` answers to what it cannot do, and what it says about what it did.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/command.h"

namespace lariat {
namespace {

using test::CommandResult;
using test::RunLariat;
using test::TempFolder;

const std::string kLoad = "simulate --workload in=20,out=3,n=2 --model smollm2-135m";
const std::string kNull = kLoad + " --backend null ";

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Case {
  std::string arguments;
  std::string said;
};

void CheckRefused(const std::string& base, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const CommandResult result = RunLariat(base + c.arguments);
    INFO(c.arguments << "\n" << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(Has(result.err, c.said));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST_CASE("A wrong command line is told in one line", "[command]") {
  CheckRefused("", {
                       {"dance", "not expected: dance; --help says what there is"},
                       {"simulate --dance", "not expected: --dance"},
                       {"inspect --dance", "not expected: --dance"},
                       {"verify", "RECORDING is required"},
                       {"verify /absent.safetensors", "/absent.config.json: No such file"},
                       {"bench dance", "bench dance; allowed"},
                       {"simulate --trace /absent", "/absent: cannot be read"},
                       {"simulate --trace", "--trace"},
                       {"simulate --trace /absent --workload in=1", "--workload"},
                   });
}

TEST_CASE("Values of flags are refused by name", "[command]") {
  CheckRefused(kNull, {
                          {"--seed -1", "--seed: '-1'; allowed: a whole number in 0..18446744"},
                          {"--seed 1.5", "--seed: '1.5'"},
                          {"--seed 18446744073709551616", "--seed: '18446744073709551616'"},
                          {"--seed 0x10", "--seed: '0x10'"},
                          {"--blocks 2147483648", "2147483647"},
                          {"--memory 1KiB", "--memory 1KiB: bytes 1024"},
                          {"--memory 8000TiB --block-size 1", "--memory 8000TiB: blocks"},
                          {"--json \"\"", "--json: is empty"},
                          {"--requests-out \"\"", "--requests-out: is empty"},
                          {"--trace-out \"\"", "--trace-out: is empty"},
                          {"--speculate \"\"", "--speculate: is empty"},
                          {"--speculate 4", "--speculate = 4; allowed: K:P, drafts of a step in 1"},
                          {"--speculate 4:", "--speculate = 4:; allowed"},
                          {"--speculate :0.5", "--speculate = :0.5; allowed"},
                          {"--speculate 0:0.5", "--speculate = 0:0.5; allowed"},
                          {"--speculate 65:0.5", "--speculate = 65:0.5; allowed"},
                          {"--speculate -1:0.5", "--speculate = -1:0.5; allowed"},
                          {"--speculate 4:1.5", "--speculate = 4:1.5; allowed"},
                          {"--speculate 4:-0.5", "--speculate = 4:-0.5; allowed"},
                          {"--speculate 4:nan", "--speculate = 4:nan; allowed"},
                          {"--speculate 4:0.5x", "--speculate = 4:0.5x; allowed"},
                          {"--speculate 4.5:0.5", "--speculate = 4.5:0.5; allowed"},
                          {"--beams 0", "--beams: Value 0 not in range"},
                          {"--beams 65", "--beams: Value 65 not in range"},
                          {"--beams two", "--beams: Value two"},
                          {"--beams 2 --speculate 2:0.5", "--speculate excludes --beams"},
                          {"--beams 4 --max-batch 3", "--beams = 4; allowed: 1 to 3"},
                          {"--beams 4 --prefill-chunk 2", "--beams = 4; allowed: 1 to 2"},
                      });
  CheckRefused("simulate --backend null ", {{"--trace \"\"", "--trace: is empty"},
                                            {"--workload \"\"", "--workload: is empty"}});
  const std::string trace =
      std::string("simulate --backend null --trace ") + LARIAT_TEST_DATA + "/mooncake_small.jsonl ";
  CheckRefused(trace, {
                          {"--rate 0", "--rate: '0'; allowed: a number in 1e-9..1e9"},
                          {"--rate 1e10", "--rate: '1e10'; allowed: a number in 1e-9..1e9"},
                          {"--rate nan", "--rate: 'nan'"},
                          {"--rate 2 --sequential", "--rate has no effect with --sequential"},
                          {"--rate 2 --concurrency 3", "--rate has no effect with --concurrency"},
                      });
}

TEST_CASE("A seed is decimal, and told", "[command]") {
  const CommandResult most = RunLariat(kNull + "--seed 18446744073709551615");
  CHECK(most.exit_code == 0);
  CHECK(Has(most.out, "seed 18446744073709551615"));
  CHECK(Has(RunLariat(kNull + "--seed 010").out, "seed 10\n"));
}

TEST_CASE("A size is rounded down to whole bytes", "[command]") {
  // Blocks of smollm2-135m take 368,640 bytes.
  const auto blocks = [](const std::string& memory) {
    const CommandResult result = RunLariat(kNull + "--json - --memory " + memory);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return nlohmann::json::parse(result.out)["blocks"]["total"].get<std::int64_t>();
  };
  CHECK(blocks("1.1GiB") == 3203);       // 1,181,116,006.4 bytes: 3,203.98 blocks
  CHECK(blocks("0.0003686400GB") == 1);  // exactly one block, in a product below it
  CHECK(blocks("368640.99") == 1);
}

TEST_CASE("Where results cannot go is said before the run", "[command]") {
  const TempFolder folder;
  const std::string file = folder.File("both");
  Write(folder.File("file"), "kept");
  // A cache beyond any machine: were it made first, that would be the error.
  const std::string base = kLoad + " --backend cpu --blocks 2147483647 ";
  for (const std::string flag : {"--json ", "--requests-out ", "--trace-out "}) {
    CheckRefused(base, {
                           {flag + "/nonexistent/r", "/nonexistent/r: cannot be written"},
                           {flag + folder.File(""), "it is a directory"},
                           {flag + folder.File("file/r"), "is not a directory"},
                           {flag + folder.File("new/"), "it is no file's name"},
                       });
  }
  CheckRefused(base,
               {
                   {"--json - --requests-out -", "both name standard output"},
                   {"--json " + file + " --requests-out " + file, "both name"},
                   {"--json " + file + " --requests-out " + folder.File("./both"), "both name"},
                   {"--trace-out - --json -", "--json and --trace-out both name standard output"},
                   {"--trace-out " + file + " --requests-out " + file, "both name"},
               });
  CHECK_FALSE(std::filesystem::exists(file));
  CHECK(test::ReadFile(folder.File("file")) == "kept");
}

TEST_CASE("An output is no input and no other output, and a file stays until there is one",
          "[command]") {
  const TempFolder folder;
  const std::string trace = folder.File("trace.jsonl"), fresh = folder.File("fresh");
  std::filesystem::copy_file(std::string(LARIAT_TEST_DATA).append("/mooncake_small.jsonl"), trace);
  const std::string before = test::ReadFile(trace);
  for (const std::string flag : {"--json ", "--requests-out ", "--trace-out "}) {
    const CommandResult result =
        RunLariat("simulate --backend null --trace " + trace + " " + flag + trace);
    CHECK(result.exit_code == 2);
    CHECK(Has(result.err, "is what --trace reads"));
    CHECK(test::ReadFile(trace) == before);
  }
  // One file that is not there yet, by two names.
  const CommandResult twice = RunLariat(kNull + "--json " + fresh + " --trace-out " +
                                        std::filesystem::relative(fresh).string());
  CHECK(twice.exit_code == 2);
  CHECK(Has(twice.err, "both name"));
  CHECK_FALSE(std::filesystem::exists(fresh));
  // A run that cannot begin, where there is no such device.
  std::ofstream(fresh) << "keep";
  if (RunLariat(kLoad + " --backend cuda --trace-out " + fresh).exit_code != 0) {
    CHECK(test::ReadFile(fresh) == "keep");
  }
}

TEST_CASE("Requests on stdout are all that it holds", "[command]") {
  const CommandResult result = RunLariat(kNull + "--requests-out -");
  CHECK(result.exit_code == 0);
  CHECK(result.out.rfind("request,line,", 0) == 0);
  CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 3);
}

TEST_CASE("A check that compared nothing is not ok", "[command]") {
  const std::string refused = kLoad + " --backend cpu --blocks 4 --check --max-length 5";
  const CommandResult result = RunLariat(refused);
  CHECK(result.exit_code == 1);
  CHECK(Has(result.out, "0 mismatches: nothing compared"));
  CHECK_FALSE(Has(result.out, ": ok"));
  CHECK(Has(result.err, "compared nothing"));
  CHECK(RunLariat(refused + " --inject-fault bit").exit_code == 2);
}

TEST_CASE("A list of bad lines that is cut says so", "[command]") {
  const CommandResult cut = RunLariat(std::string("simulate --backend null --trace ") +
                                      LARIAT_TEST_DATA + "/mooncake_bad.jsonl");
  CHECK(cut.exit_code == 0);
  CHECK(Has(cut.err, "and 2 more\n"));
}

TEST_CASE("Messages of traces give the reason, and the file once", "[command]") {
  const TempFolder folder;
  const std::string path = folder.File("t.jsonl");
  Write(path, R"({"arrival_ms": 0, "prompt": [1], "output": [1, 2, 3], "output_length": 5})"
              "\n");
  const CommandResult result = RunLariat("simulate --backend null --trace " + path);
  CHECK(result.exit_code == 2);
  CHECK(Has(result.err,
            "in line 1: output_length: is 5; allowed: a whole number in 3..3, as many "
            "as output has tokens"));
  CHECK(result.err.find(path) == result.err.rfind(path));
}

TEST_CASE("A model that is not there is named, with what there is", "[command]") {
  CheckRefused("simulate --workload in=20,out=3,n=2 --backend null --model ",
               {{"nosuch", "allowed: the path of a config.json, or one of "}});
}

TEST_CASE("A device that is a file is told by its path", "[command]") {
  const TempFolder folder;
  const std::string path = folder.File("mine.json");
  std::filesystem::copy_file(std::string(LARIAT_TEST_DATA) + "/../../devices/h200.json", path);
  CHECK(Has(RunLariat(kNull + "--device " + path).out, "on device h200 (" + path + ")"));
  CHECK(Has(RunLariat(kNull + "--device h200").out, "on device h200, "));
}

}  // namespace
}  // namespace lariat
