// SPDX-License-Identifier: Apache-2.0
// The `lariat` command as a script sees it: exit codes, streams, documents, messages.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/command.h"

namespace lariat {
namespace {

using nlohmann::ordered_json;
using test::CommandResult;
using test::ReadFile;
using test::RunLariat;
using test::TempFolder;

const std::string kSmall = std::string("--trace ") + LARIAT_TEST_DATA + "/mooncake_small.jsonl";
const std::string kModel = " --model smollm2-135m";
const std::string kTight =
    "--workload in=64,out=160,n=10,prefix=32 --blocks 60 --model smollm2-135m";

ordered_json Json(const std::string& arguments) {
  const CommandResult result = RunLariat("simulate " + arguments + " --json -");
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  return ordered_json::parse(result.out);
}

std::vector<std::string> Keys(const ordered_json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

// Without what may differ between backends and runs.
ordered_json Comparable(ordered_json doc) {
  doc.erase("backend");
  doc.erase("check");
  doc["time"].erase("wall_s");
  doc["time"].erase("manager_s");
  doc["time"].erase("device_s");
  return doc;
}

TEST_CASE("The document has every key", "[command]") {
  using Names = std::vector<std::string>;
  const ordered_json doc =
      Json(kSmall + kModel + " --backend null --sequential --unlimited --max-length none");
  CHECK(Keys(doc) == Names{"backend", "model", "device", "trace", "served", "prefix", "speculation",
                           "beams", "blocks", "host", "steps", "tokens_appended",
                           "recomputed_tokens", "bytes", "time", "load", "throughput", "latency_ms",
                           "check"});
  CHECK(doc["backend"] == "null");
  CHECK(doc["model"] == "smollm2-135m");
  CHECK(doc["device"] == "h200");
  CHECK(doc["trace"].dump() ==
        R"({"requests":6,"input_tokens":5348,"output_tokens":17,"bad_lines":0})");
  CHECK(
      doc["served"].dump() ==
      R"({"finished":6,"refused":0,"refused_by":{"max_length":0,"never_fits":0},"preemptions":0})");
  CHECK(Keys(doc["prefix"]) == Names{"hit_tokens", "lookup_tokens", "hit_rate"});
  CHECK(doc["prefix"]["hit_tokens"] == 2720);
  CHECK(doc["prefix"]["lookup_tokens"] == 5348);
  CHECK(doc["prefix"]["hit_rate"].get<double>() == 2720.0 / 5348.0);
  CHECK(doc["speculation"].is_null());
  CHECK(doc["beams"].is_null());
  CHECK(doc["blocks"].dump() ==
        R"({"size":16,"total":null,"peak_used":82,"evicted":0,"bytes_each":368640})");
  CHECK(doc["steps"] == 17);
  CHECK(doc["tokens_appended"] == 2639);
  CHECK(doc["recomputed_tokens"] == 0);
  CHECK(doc["bytes"].dump() == R"({"appended":60802560,"offloaded":0,"onboarded":0})");
  CHECK(Keys(doc["time"]) == Names{"wall_s", "manager_s", "device_s", "virtual_s"});
  CHECK(doc["time"]["device_s"].is_null());
  CHECK(doc["time"]["wall_s"] > 0);
  CHECK(doc["time"]["manager_s"] > 0);
  CHECK(doc["time"]["manager_s"] <= doc["time"]["wall_s"]);
  CHECK(Keys(doc["load"]) == Names{"offered", "busy_fraction", "saturated"});
  CHECK(Keys(doc["throughput"]) == Names{"output_tok_s", "req_s"});
  CHECK(Keys(doc["latency_ms"]) == Names{"queue", "ttft", "tpot", "e2e"});
  for (const char* name : {"queue", "ttft", "tpot", "e2e"}) {
    CHECK(Keys(doc["latency_ms"][name]) == Names{"mean", "p50", "p90", "p99", "max"});
  }
  CHECK(doc["check"].is_null());
}

TEST_CASE("Null, the CPU and a second run agree", "[command]") {
  const ordered_json null = Json(kTight + " --backend null");
  const ordered_json cpu = Json(kTight + " --backend cpu --check");
  CHECK(cpu["backend"] == "cpu");
  CHECK(cpu["check"].dump() == R"({"sequences":10,"mismatches":0})");
  CHECK(null["served"]["preemptions"] > 0);
  CHECK(Comparable(null).dump() == Comparable(cpu).dump());
  CHECK(Comparable(null).dump() == Comparable(Json(kTight + " --backend null")).dump());
}

TEST_CASE("A model of latents: null and the CPU agree, in blocks of 64 unless told", "[command]") {
  const std::string run = "--workload in=200,out=150,n=8,prefix=128 --model deepseek-v2-lite";
  const ordered_json null = Json(run + " --blocks 16 --backend null");
  const ordered_json cpu = Json(run + " --blocks 16 --backend cpu --check");
  CHECK(cpu["check"].dump() == R"({"sequences":8,"mismatches":0})");
  CHECK(null["served"]["preemptions"] > 0);
  CHECK(null["blocks"]["evicted"] > 0);
  CHECK(null["prefix"]["hit_tokens"] > 0);
  CHECK(Comparable(null).dump() == Comparable(cpu).dump());
  CHECK(null["blocks"]["size"] == 64);
  CHECK(null["blocks"]["bytes_each"] == 64 * 27 * 576 * 2);
  CHECK(Json(run + " --block-size 16 --backend null")["blocks"]["size"] == 16);
  for (const char* fault : {"stale", "shift", "bit"}) {
    const CommandResult broken =
        RunLariat("simulate " + run + " --blocks 16 --backend cpu --check" + " --inject-fault " +
                  fault + " --at 20");
    CHECK(broken.exit_code == 1);
    CHECK(broken.out.find("FAILED") != std::string::npos);
  }
  const ordered_json whole = Json(kSmall + " --model deepseek-v3 --sequential --backend null");
  CHECK(whole["prefix"]["hit_tokens"] == 2624);
  CHECK(whole["blocks"]["bytes_each"] == 64 * 70272);
  CHECK(whole["bytes"]["appended"] == (5359 - 2624) * 70272);
}

TEST_CASE("Speculation and beams: null, the CPU and a second run agree", "[command]") {
  for (const std::string flag : {" --speculate 4:0.6", " --beams 2"}) {
    const ordered_json null = Json(kTight + " --backend null" + flag);
    const ordered_json cpu = Json(kTight + " --backend cpu --check" + flag);
    CHECK(cpu["check"]["mismatches"] == 0);
    CHECK(null["served"]["preemptions"] > 0);
    CHECK(Comparable(null).dump() == Comparable(cpu).dump());
    CHECK(Comparable(null).dump() == Comparable(Json(kTight + " --backend null" + flag)).dump());
    CHECK(Comparable(null).dump() !=
          Comparable(Json(kTight + " --backend null --seed 1" + flag)).dump());
  }
  const ordered_json drafts = Json(kTight + " --backend null --speculate 4:0.6");
  CHECK(Keys(drafts["speculation"]) == std::vector<std::string>{"drafted", "accepted"});
  CHECK(drafts["speculation"]["accepted"] > 0);
  CHECK(drafts["speculation"]["accepted"] < drafts["speculation"]["drafted"]);
  CHECK(drafts["beams"].is_null());
  const ordered_json beams = Json(kTight + " --backend null --beams 2");
  CHECK(Keys(beams["beams"]) == std::vector<std::string>{"width", "forks", "copied_blocks"});
  CHECK(beams["beams"]["width"] == 2);
  CHECK(beams["beams"]["forks"] > 10);
  CHECK(beams["speculation"].is_null());
  CHECK(Json(kTight + " --backend null --beams 1")["beams"].is_null());
  const std::string text =
      RunLariat("simulate " + kTight + " --backend null --speculate 4:0.6").out;
  CHECK(text.find("drafts ") != std::string::npos);
  CHECK(RunLariat("simulate " + kTight + " --backend null --beams 2").out.find("beams ") !=
        std::string::npos);
  for (const std::string flag : {" --speculate 4:0.6", " --beams 2"}) {
    CHECK(RunLariat("simulate " + kTight + " --backend cpu --check --inject-fault stale --at 9" +
                    flag)
              .exit_code == 1);
  }
}

TEST_CASE("A trace without token identity has no prefix", "[command]") {
  const ordered_json doc =
      Json(std::string("--trace ") + LARIAT_TEST_DATA + "/azure_small.csv --backend null");
  CHECK(doc["prefix"].is_null());
  CHECK(doc["served"]["finished"] == 4);
}

TEST_CASE("Rate, limit and max-length do what they say", "[command]") {
  const std::string base = kSmall + kModel + " --backend null ";
  CHECK(Json(base + "--limit 2")["trace"]["requests"] == 2);
  // A hundred times the span is far more than the work.
  const double slow = Json(base + "--rate 0.01")["load"]["offered"];
  const double plain = Json(base)["load"]["offered"];
  CHECK(slow < plain / 50);
  CHECK(Json(base + "--max-length 1100")["served"]["refused_by"]["max_length"] == 1);
  CHECK(Json(base + "--memory 24MiB")["served"]["refused_by"]["never_fits"] == 1);
  CHECK(Json(base + "--memory 24MiB")["blocks"]["total"] == 68);
  CHECK(Json(base + "--memory 1e9")["blocks"]["total"] == 2712);
  CHECK(Json(base + "--dtype fp32 --memory 1GB")["blocks"]["bytes_each"] == 2 * 368640);
}

TEST_CASE("The text names the backend, and saturation before any percentile", "[command]") {
  const CommandResult result = RunLariat("simulate " + kTight + " --backend null");
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(result.out.find("backend null") != std::string::npos);
  const std::size_t saturated = result.out.find("SATURATED");
  REQUIRE(saturated != std::string::npos);
  CHECK(saturated < result.out.find("p50"));
  CHECK(result.out.find("p50") != std::string::npos);
  const CommandResult calm =
      RunLariat("simulate " + kSmall + kModel + " --rate 0.01 --backend null");
  CHECK(calm.out.find("SATURATED") == std::string::npos);
}

TEST_CASE("Documents go to files, and the text stays on stdout", "[command]") {
  const TempFolder folder;
  const CommandResult result =
      RunLariat("simulate " + kSmall + kModel + " --backend null --sequential --max-length 1100" +
                " --json " + folder.File("r.json") + " --requests-out " + folder.File("r.csv"));
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("served") != std::string::npos);
  CHECK(ordered_json::parse(ReadFile(folder.File("r.json")))["served"]["finished"] == 5);
  const std::string csv = ReadFile(folder.File("r.csv"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 7);
  CHECK(csv.find("request,line,outcome,input_tokens,output_tokens,hit_tokens,host_hit_tokens,"
                 "recomputed_tokens,"
                 "preemptions,arrival_s,queue_ms,ttft_ms,tpot_ms,e2e_ms\n0,1,finished,1024,4,0,0,0,"
                 "0,0,") == 0);
  CHECK(csv.find("\n1,2,max_length,1300,0,0,0,0,") != std::string::npos);
  CHECK(csv.find("\n2,3,finished,1024,2,1008,0,0,") != std::string::npos);
}

TEST_CASE("LARIAT_BACKEND takes the place of auto, and of nothing else", "[command]") {
  const std::string run = "simulate " + kSmall + kModel + " --json -";
  const auto backend = [](const CommandResult& result) {
    REQUIRE(result.exit_code == 0);
    return ordered_json::parse(result.out)["backend"].get<std::string>();
  };
  CHECK(backend(RunLariat(run, "LARIAT_BACKEND=null ")) == "null");
  CHECK(backend(RunLariat(run + " --backend auto", "LARIAT_BACKEND=null ")) == "null");
  CHECK(backend(RunLariat(run + " --backend cpu --memory 64MiB", "LARIAT_BACKEND=null ")) == "cpu");
  CHECK(backend(RunLariat(run + " --memory 64MiB", "LARIAT_BACKEND= ")) != "null");
  const CommandResult bad = RunLariat(run, "LARIAT_BACKEND=tpu ");
  CHECK(bad.exit_code == 2);
  CHECK(bad.err.find("LARIAT_BACKEND = tpu") != std::string::npos);
}

TEST_CASE("A check that fails is exit 1, a fault that never fires is exit 2", "[command]") {
  for (const char* fault : {"stale", "shift", "bit"}) {
    const CommandResult broken =
        RunLariat("simulate " + kTight + " --backend cpu --check --json -" + " --inject-fault " +
                  fault + " --at 30");
    CHECK(broken.exit_code == 1);
    CHECK(ordered_json::parse(broken.out)["check"]["mismatches"] > 0);
    CHECK(ordered_json::parse(broken.out)["check"]["sequences"] == 10);
  }
  const CommandResult never = RunLariat("simulate " + kTight + " --backend cpu --check" +
                                        " --inject-fault bit --at 100000");
  CHECK(never.exit_code == 2);
  CHECK(never.err.find("--inject-fault bit --at 100000") != std::string::npos);
}

TEST_CASE("Bad lines are counted, or with --strict fatal", "[command]") {
  const std::string bad = std::string("--trace ") + LARIAT_TEST_DATA + "/mooncake_bad.jsonl" +
                          kModel + " --backend null";
  const CommandResult counted = RunLariat("simulate " + bad + " --json -");
  CHECK(counted.exit_code == 0);
  CHECK(ordered_json::parse(counted.out)["trace"]["bad_lines"] == 7);
  CHECK(counted.err.find("mooncake_bad.jsonl:2:") != std::string::npos);
  const CommandResult strict = RunLariat("simulate " + bad + " --strict --json -");
  CHECK(strict.exit_code == 2);
  CHECK(strict.out.empty());
  CHECK(strict.err.find("mooncake_bad.jsonl:2:") != std::string::npos);
}

TEST_CASE("Bad usage is exit 2, says what, and leaves stdout empty", "[command]") {
  struct Case {
    const char* arguments;
    const char* text;
  };
  const std::string base = "simulate --workload in=20,out=3,n=2 ";
  for (const Case& c : std::vector<Case>{
           {"--backend null --bogus", "--bogus"},
           {"--backend tpu", "--backend = tpu; allowed: auto, cpu, cuda, null"},
           {"--backend null --blocks 0", "--blocks"},
           {"--backend null --blocks 4 --memory 1GiB", "--memory"},
           {"--backend null --memory 8XiB", "--memory = 8XiB"},
           {"--backend null --memory 0.5", "--memory = 0.5"},
           {"--backend null --memory 1KiB", "at least one block"},
           {"--backend cpu --unlimited", "--unlimited needs --backend null"},
           {"--backend null --check", "--check needs"},
           {"--backend cpu --inject-fault bit", "--check"},
           {"--backend cpu --check --inject-fault rot", "rot"},
           {"--backend cpu --check --at 3", "--inject-fault"},
           {"--backend null --max-length 0", "--max-length = 0"},
           {"--backend null --max-length 1k", "--max-length = 1k"},
           {"--backend null --concurrency 2 --sequential", "--sequential"},
           {"--backend null --rate 2", "--workload"},
           {"--backend null --follow-turns", "--workload"},
           {"--backend null --device nosuch", "nosuch"},
           {"--backend null --dtype int8", "int8"},
           {"--backend null --policy fifo", "fifo"},
           {"--backend null --json /nonexistent/r.json", "/nonexistent/r.json"},
           {"--backend null --requests-out /nonexistent/r.csv", "/nonexistent/r.csv"},
       }) {
    INFO(c.arguments);
    const CommandResult result = RunLariat(base + c.arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    INFO(result.err);
    CHECK(result.err.find(c.text) != std::string::npos);
  }
  CHECK(RunLariat("").exit_code == 2);
  CHECK(RunLariat("frobnicate").exit_code == 2);
  CHECK(RunLariat("simulate").exit_code == 2);
  CHECK(RunLariat("simulate --trace /nonexistent.jsonl").exit_code == 2);
  CHECK(RunLariat("simulate --workload in=0,out=3,n=2").exit_code == 2);
}

TEST_CASE("What is not built says so by name", "[command]") {
  for (const char* arguments : {"--gpus 2", "--weights-dtype fp8", "--memory auto",
                                "--report r.html", "--dtype fp8_e4m3"}) {
    INFO(arguments);
    const CommandResult result =
        RunLariat(std::string("simulate --workload in=20,out=3,n=2 --backend null ") + arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    INFO(result.err);
    CHECK(result.err.find("not built in this version") != std::string::npos);
    // The flag, or its value.
    const std::string flag(arguments, std::string(arguments).find(' '));
    CHECK(result.err.find(flag) != std::string::npos);
  }
}

TEST_CASE("A host tier on the command line", "[command]") {
  const std::string run =
      "simulate --workload in=64,out=60,n=8,prefix=37 --model smollm2-135m "
      "--blocks 30 --backend null ";
  const CommandResult good =
      RunLariat(run + "--host-memory 64MiB --write-policy through --preempt swap --json -");
  REQUIRE(good.exit_code == 0);
  const auto doc = ordered_json::parse(good.out);
  CHECK(doc["host"]["blocks"] > 0);
  CHECK(doc["host"]["swaps"] == doc["served"]["preemptions"]);
  CHECK(doc["recomputed_tokens"] == 0);
  CHECK(doc["bytes"]["offloaded"] > 0);
  CHECK(doc["prefix"]["device_hit_tokens"].get<std::int64_t>() +
            doc["prefix"]["host_hit_tokens"].get<std::int64_t>() ==
        doc["prefix"]["hit_tokens"].get<std::int64_t>());
  const CommandResult text = RunLariat(run + "--host-memory 64MiB --late-copies");
  CHECK(text.exit_code == 0);
  CHECK(text.out.find("host tier") != std::string::npos);
  for (const char* bad : {"--preempt swap", "--preempt auto", "--host-memory 1", "--host-memory x",
                          "--write-policy through", "--late-copies"}) {
    INFO(bad);
    const CommandResult refused = RunLariat(run + bad);
    CHECK(refused.exit_code == 2);
    CHECK(refused.out.empty());
    CHECK(refused.err.find("host") != std::string::npos);
  }
}

TEST_CASE("BurstGPT and Bailian traces, told and named", "[command]") {
  const std::string data = LARIAT_TEST_DATA;
  for (const char* format : {"", " --format burstgpt"}) {
    const CommandResult result = RunLariat("simulate --trace " + data + "/burstgpt_small.csv" +
                                           format + " --backend null --json -");
    REQUIRE(result.exit_code == 0);
    CHECK(result.err.find("burstgpt_small.csv:6: Response tokens: is '0'") != std::string::npos);
    const ordered_json doc = ordered_json::parse(result.out);
    CHECK(doc["trace"].dump() ==
          R"({"requests":7,"input_tokens":1200,"output_tokens":120,"bad_lines":3})");
    CHECK(doc["prefix"].is_null());
  }
  for (const char* format : {"", " --format bailian"}) {
    const CommandResult result = RunLariat("simulate --trace " + data + "/bailian_small.jsonl" +
                                           format + " --sequential --backend null --json -");
    REQUIRE(result.exit_code == 0);
    const ordered_json doc = ordered_json::parse(result.out);
    CHECK(doc["trace"].dump() ==
          R"({"requests":9,"input_tokens":411,"output_tokens":27,"bad_lines":1})");
    CHECK(doc["prefix"]["hit_tokens"] == 256);
  }
  for (const char* file : {"burstgpt_small.csv", "bailian_small.jsonl"}) {
    CHECK(
        RunLariat("simulate --trace " + data + "/" + file + " --strict --backend null").exit_code ==
        2);
  }
}

TEST_CASE("A turn waits with --follow-turns, which says where there is none", "[command]") {
  const TempFolder folder;
  const std::string trace = folder.File("t.jsonl");
  std::ofstream(trace) << "{\"arrival_ms\":0,\"prompt\":[1,2],\"output_length\":9,\"session\":1}\n"
                       << "{\"arrival_ms\":0,\"prompt\":[1,3],\"output_length\":9,\"session\":1}\n";
  const std::string run = "--trace " + trace + " --backend null";
  CHECK(Json(run)["steps"] == 9);
  CHECK(Json(run + " --follow-turns")["steps"] == 18);
  CHECK(Json(run + " --follow-turns --concurrency 2")["steps"] == 18);
  CHECK(Json(run + " --concurrency 2")["steps"] == 9);

  const CommandResult none =
      RunLariat("simulate " + kSmall + kModel + " --backend null --follow-turns");
  CHECK(none.exit_code == 0);
  CHECK(none.err.find("--follow-turns") != std::string::npos);
}

TEST_CASE("Help and version are exit 0", "[command]") {
  const CommandResult help = RunLariat("simulate --help");
  CHECK(help.exit_code == 0);
  for (const char* flag : {"--trace",        "--workload",    "--format",        "--limit",
                           "--rate",         "--concurrency", "--sequential",    "--model",
                           "--dtype",        "--device",      "--block-size",    "--blocks",
                           "--memory",       "--unlimited",   "--policy",        "--preempt",
                           "--reuse",        "--max-batch",   "--prefill-chunk", "--max-length",
                           "--seed",         "--check",       "--inject-fault",  "--at",
                           "--requests-out", "--json",        "--backend",       "--strict",
                           "--follow-turns", "--speculate",   "--beams",         "--layout",
                           "--order",        "--trace-out"}) {
    INFO(flag);
    CHECK(help.out.find(flag) != std::string::npos);
  }
  CHECK(help.out.find("--gpus") == std::string::npos);
  CHECK(RunLariat("--help").out.find("simulate") != std::string::npos);
  CHECK(RunLariat("--version").exit_code == 0);
}

}  // namespace
}  // namespace lariat
