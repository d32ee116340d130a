// SPDX-License-Identifier: Apache-2.0
// The cost model against numbers worked by hand, and device files.
#include "lariat/cost_model.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lariat/model.h"
#include "support/catch.h"

namespace {

using lariat::DeviceSpec;
using lariat::DType;
using lariat::LoadDevice;
using lariat::ModelConfig;
using lariat::ModelCost;
using lariat::Result;
using lariat::StepTime;
using lariat::StepWork;

const std::string kRoot = std::string(LARIAT_TEST_DATA) + "/../..";

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

DeviceSpec H200() {
  Result<DeviceSpec> device = LoadDevice("h200");
  INFO(device.status().message());
  REQUIRE(device.ok());
  return *std::move(device);
}

ModelCost Llama8B(DType cache = DType::kBF16) {
  Result<ModelConfig> model = lariat::ModelPreset("llama-3.1-8b");
  REQUIRE(model.ok());
  Result<ModelCost> cost = lariat::MakeModelCost(*model, cache);
  REQUIRE(cost.ok());
  return *cost;
}

// A device whose seconds are counts: of FLOPs where flops is 1 and bytes free, or the other way.
DeviceSpec Counter(bool flops) {
  DeviceSpec device;
  device.flops.value = flops ? 1.0 : 0x1p200;
  device.bytes_per_s.value = flops ? 0x1p200 : 1.0;
  for (lariat::Efficiency* reach :
       {&device.gemm, &device.moe, &device.prefill_attention, &device.decode_attention}) {
    reach->flops.value = reach->bytes.value = 1.0;
  }
  device.append_bytes.value = 1.0;
  device.host_to_device_bytes_per_s.value = device.device_to_host_bytes_per_s.value = 1.0;
  return device;
}

// The step of docs/simulator.md.
StepWork WorkedStep() {
  StepWork work;
  for (int i = 0; i < 64; ++i) work.Add(1, 1024, true);
  work.Add(512, 2048, false);
  return work;
}

// "12,345"
std::string Grouped(const std::string& digits) {
  const std::size_t end = std::min(digits.find('.'), digits.size());
  std::string out;
  for (std::size_t at = 0; at < digits.size(); ++at) {
    if (at > 0 && at < end && (end - at) % 3 == 0) out += ',';
    out += digits[at];
  }
  return out;
}
std::string Count(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.0f", value);
  return Grouped(text);
}
std::string Microseconds(double seconds) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.3f", seconds * 1e6);
  return Grouped(text);
}

}  // namespace

TEST_CASE("work is summed over sequences") {
  StepWork work;
  work.Add(0, 100, true);
  CHECK(work.rows() == 0);
  CHECK(work.logit_rows == 0);
  work.Add(1, 10, true);
  work.Add(1, 1, false);
  CHECK(work.decode_rows == 2);
  CHECK(work.decode_context == 11);
  CHECK(work.logit_rows == 1);
  // Rows 4 to 6 attend to 5, 6 and 7 tokens.
  work.Add(3, 7, true);
  CHECK(work.prefill_rows == 3);
  CHECK(work.prefill_context == 7);
  CHECK(work.prefill_row_context == 5 + 6 + 7);
  CHECK(work.logit_rows == 2);
  CHECK(work.rows() == 5);

  // A prompt at once, counted row by row.
  StepWork whole;
  whole.Add(1000, 1000, true);
  std::int64_t attended = 0;
  for (int row = 1; row <= 1000; ++row) attended += row;
  CHECK(whole.prefill_row_context == attended);
}

TEST_CASE("the step worked by hand: FLOPs and bytes, to the last one") {
  const ModelCost model = Llama8B();
  const StepWork work = WorkedStep();
  CHECK(model.gemm_weights == 32.0 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336));
  CHECK(model.gemm_weights == 6979321856.0);
  CHECK(model.head_weights == 525336576.0);
  CHECK(model.gemm_row_values == 2228224.0);
  CHECK(model.head_row_values == 132352.0);
  CHECK(model.decode_attention.context_bytes == 131072.0);

  const StepTime flops = lariat::CostStep(model, Counter(true), work);
  CHECK(flops.gemm_s == 8107421859840.0);
  CHECK(flops.moe_s == 0.0);
  CHECK(flops.prefill_attention_s == 481170554880.0);
  CHECK(flops.decode_attention_s == 34359738368.0);
  const StepTime bytes = lariat::CostStep(model, Counter(false), work);
  CHECK(bytes.gemm_s == 17593171968.0);
  CHECK(bytes.moe_s == 0.0);
  CHECK(bytes.prefill_attention_s == 536870912.0);
  CHECK(bytes.decode_attention_s == 8623489024.0);
  CHECK(bytes.append_s == 150994944.0);
}

TEST_CASE("the step worked by hand: the page has the table that the model computes") {
  const std::string page = ReadText(kRoot + "/docs/simulator.md");
  const ModelCost model = Llama8B();
  const DeviceSpec device = H200();
  const StepWork work = WorkedStep();
  const StepTime flops = lariat::CostStep(model, Counter(true), work);
  const StepTime bytes = lariat::CostStep(model, Counter(false), work);
  const StepTime time = lariat::CostStep(model, device, work);

  const auto row = [&](const std::string& name, double f, double b, double e_f, double e_b,
                       double seconds) {
    const double flop_s = f / (e_f * device.flops.value);
    const double byte_s = b / (e_b * device.bytes_per_s.value);
    CHECK(seconds == std::max(flop_s, byte_s));
    const std::string line = "| " + name + " | " + Count(f) + " | " + Count(b) + " | " +
                             Microseconds(flop_s) + " | " + Microseconds(byte_s) + " | " +
                             Microseconds(seconds) + " |";
    INFO(line);
    CHECK(page.find(line) != std::string::npos);
  };
  row("GEMM", flops.gemm_s, bytes.gemm_s, 0.75, 0.948, time.gemm_s);
  row("prefill attention", flops.prefill_attention_s, bytes.prefill_attention_s, 0.65, 0.83,
      time.prefill_attention_s);
  row("decode attention", flops.decode_attention_s, bytes.decode_attention_s, 0.6, 0.91,
      time.decode_attention_s);
  row("append", 0.0, bytes.append_s, 1.0, 0.83, time.append_s);
  CHECK(page.find("| overhead | | | | | " + Microseconds(time.overhead_s) + " |") !=
        std::string::npos);
  CHECK(Microseconds(time.overhead_s) == "169.300");
  const double total = lariat::StepSeconds(model, device, work);
  CHECK(total == time.total_s());
  CHECK(page.find("| step | | | | | " + Microseconds(total) + " |") != std::string::npos);
}

TEST_CASE("experts: the expected number of distinct ones") {
  ModelConfig config = *lariat::ModelPreset("llama-3.1-8b");
  config.experts = 8;
  config.experts_per_token = 2;
  const Result<ModelCost> made = lariat::MakeModelCost(config, DType::kBF16);
  REQUIRE(made.ok());
  const ModelCost model = *made;
  CHECK(model.moe_layers == 32);
  CHECK(model.expert_weights == 3.0 * 4096 * 14336);
  CHECK(model.gemm_weights == 32.0 * (4096 * 6144 + 4096 * 4096 + 4096 * 8));

  // One row visits two experts; two rows 8 (1 - (3/4)^2) = 3.5 on average.
  StepWork one;
  one.Add(1, 1, true);
  const double visit_bytes = 2.0 * (4096 + 2 * 14336 + 14336 + 4096);
  CHECK(lariat::CostStep(model, Counter(true), one).moe_s == 32 * 2.0 * 2 * model.expert_weights);
  CHECK(lariat::CostStep(model, Counter(false), one).moe_s ==
        32 * (2 * 2 * model.expert_weights + 2 * visit_bytes));
  StepWork two = one;
  two.Add(1, 5, true);
  CHECK(lariat::CostStep(model, Counter(false), two).moe_s ==
        32 * (3.5 * 2 * model.expert_weights + 4 * visit_bytes));
  // Many rows visit them all.
  StepWork many;
  many.Add(2000, 2000, false);
  CHECK(lariat::CostStep(model, Counter(false), many).moe_s ==
        32 * (8 * 2 * model.expert_weights + 4000 * visit_bytes));
}

TEST_CASE("MLA: prefills expand their context, decodes attend to latents") {
  const ModelConfig config = *lariat::ModelPreset("deepseek-v3");
  const Result<ModelCost> made = lariat::MakeModelCost(config, DType::kBF16);
  REQUIRE(made.ok());
  const ModelCost model = *made;
  // 61 layers of 128 heads: queries of 128 + 64 through 1536, latents of 512, rows of 576.
  const double attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 128 * 128 * 7168;
  const double experts = 7168 * 256 + 3 * 7168 * 2048;  // the router and the shared one
  CHECK(model.gemm_weights == 61 * attention + 3 * (3.0 * 7168 * 18432) + 58 * experts);
  CHECK(model.up_weights == 61.0 * 512 * 128 * (128 + 128));
  CHECK(model.decode_attention.flops == 61.0 * 2 * 128 * (576 + 512));
  CHECK(model.decode_attention.row_bytes == 61.0 * 2 * 128 * (576 + 512));
  CHECK(model.decode_attention.context_bytes == 70272.0);
  CHECK(model.prefill_attention.flops == 61.0 * 2 * 128 * (192 + 128));
  CHECK(model.prefill_attention.context_bytes == 61.0 * 2 * 128 * (192 + 128));
  CHECK(model.append_row_bytes == 2 * 70272.0);

  StepWork work;
  work.Add(1, 1000, false);  // a decode
  work.Add(10, 300, false);  // rows 291 to 300 of a prompt: 2,955 tokens attended to
  const StepTime flops = lariat::CostStep(model, Counter(true), work);
  CHECK(flops.gemm_s == 2 * (11 * model.gemm_weights + 301 * model.up_weights));
  CHECK(flops.decode_attention_s == 1000 * model.decode_attention.flops);
  CHECK(flops.prefill_attention_s == 2955 * model.prefill_attention.flops);
  const StepTime bytes = lariat::CostStep(model, Counter(false), work);
  const double row_values = 61.0 * (7168 + 1536 + 1536 + 24576 + 7168 + 576 + 16384 + 7168) +
                            3.0 * (7168 + 2 * 18432 + 18432 + 7168) +
                            58.0 * (7168 + 256 + 7168 + 2 * 2048 + 2048 + 7168);
  const double absorbed = 61.0 * (128 * (128 + 512) + 128 * (512 + 128));
  const double expanded = 61.0 * (576 + 128 * (192 + 128));
  CHECK(bytes.gemm_s == 2 * (model.gemm_weights + model.up_weights) +
                            2 * (11 * row_values + absorbed + 300 * expanded));
  CHECK(bytes.decode_attention_s == model.decode_attention.row_bytes + 1000 * 70272.0);
  CHECK(bytes.prefill_attention_s == 310 * model.prefill_attention.context_bytes);
  CHECK(bytes.append_s == 11 * 2 * 70272.0);

  // A wider cache widens what is read of it, and not what is expanded from it.
  const ModelCost wide = *lariat::MakeModelCost(config, DType::kFP32);
  CHECK(wide.decode_attention.context_bytes == 2 * 70272.0);
  CHECK(wide.prefill_attention.context_bytes == model.prefill_attention.context_bytes);
  CHECK(wide.append_row_bytes == 3 * 70272.0);

  // Queries that are projected at once.
  const ModelCost lite =
      *lariat::MakeModelCost(*lariat::ModelPreset("deepseek-v2-lite"), DType::kBF16);
  const double lite_attention = 2048 * 16 * 192 + 2048 * 576 + 16 * 128 * 2048;
  CHECK(lite.gemm_weights ==
        27 * lite_attention + 3.0 * 2048 * 10944 + 26 * (2048.0 * 64 + 3 * 2048 * 2 * 1408));
}

TEST_CASE("classes without work take no time, copies go at the link's speed") {
  const ModelCost model = Llama8B();
  const DeviceSpec device = H200();
  StepWork nothing;
  CHECK(lariat::StepSeconds(model, device, nothing) == 0.0);
  nothing.host_to_device_bytes = 545;
  nothing.device_to_host_bytes = 552;
  CHECK(lariat::StepSeconds(model, device, nothing) == 545 / 54.5e9 + 552 / 55.2e9);

  StepWork decode;
  decode.Add(1, 50, true);
  const StepTime time = lariat::CostStep(model, device, decode);
  CHECK(time.prefill_attention_s == 0.0);
  CHECK(time.decode_attention_s > 0.0);
  CHECK(time.host_copy_s == 0.0);
  // Without wanted logits the output projection is not even read.
  StepWork chunk;
  chunk.Add(2, 50, false);
  CHECK(lariat::CostStep(model, Counter(false), chunk).gemm_s ==
        2.0 * (model.gemm_weights + 2 * model.gemm_row_values));
}

TEST_CASE("a wider cache costs more to read and to write") {
  const ModelCost narrow = Llama8B();
  const ModelCost wide = Llama8B(DType::kFP32);
  CHECK(wide.decode_attention.context_bytes == 2 * narrow.decode_attention.context_bytes);
  CHECK(wide.prefill_attention.context_bytes == 2 * narrow.prefill_attention.context_bytes);
  CHECK(narrow.append_row_bytes == 2 * 131072.0);
  CHECK(wide.append_row_bytes == 131072.0 + 262144.0);
  CHECK(wide.gemm_weights == narrow.gemm_weights);
}

TEST_CASE("a step costs the same however many sequences it has, and little") {
  const ModelCost model = Llama8B();
  const DeviceSpec device = H200();
  StepWork work;
  for (int i = 0; i < 256; ++i) work.Add(1, 1000 + i, true);
  constexpr int kRounds = 20000;
  double sum = 0.0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    work.decode_context += 256;
    sum += lariat::StepSeconds(model, device, work);
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  CHECK(sum > 0.0);
  // 0.02 us where measured; the bound leaves room for sanitizers and a busy machine.
  CHECK(wall.count() / kRounds < 5e-6);
}

TEST_CASE("models that cannot be costed") {
  const ModelConfig good = *lariat::ModelPreset("llama-3.1-8b");
  const auto refusal = [&](auto spoil) {
    ModelConfig model = good;
    spoil(model);
    const Result<ModelCost> cost = lariat::MakeModelCost(model, DType::kBF16);
    REQUIRE_FALSE(cost.ok());
    return cost.status().ToString();
  };
  using Model = ModelConfig;
  CHECK(refusal([](Model& m) { m.hidden_size = 0; }) ==
        "InvalidArgument: model: hidden_size is 0; allowed: >= 1");
  CHECK(refusal([](Model& m) { m.num_layers = 31; }) ==
        "InvalidArgument: model: num_layers is 31; allowed: 32, as many as layers has");
  CHECK(refusal([](Model& m) { m.experts = 4; }) ==
        "InvalidArgument: model: experts_per_token is 0; allowed: 1..4, which is experts");
  CHECK(refusal([](Model& m) { m.layers[3].v_dim = 0; }) ==
        "InvalidArgument: model: layers[].v_dim is 0; allowed: >= 1");
  CHECK(refusal([](Model& m) { m.layers[3].kind = lariat::LayerKind::kSliding; }) ==
        "InvalidArgument: model: layers[].window is 0; allowed: >= 1 of a layer with a window");
  CHECK(refusal([](Model& m) {
          for (int i = 0; i < 5; ++i) {
            m.layers[static_cast<std::size_t>(i)].kind = lariat::LayerKind::kSliding;
            m.layers[static_cast<std::size_t>(i)].window = 10 + i;
          }
        }) == "Unsupported: model: layers[].window: the layers have more than 4 different windows");
  CHECK(refusal([](Model& m) { m.layers[3].kind = lariat::LayerKind::kLinear; }) ==
        "Unsupported: model: layers[3] is linear; allowed: full, sliding, chunked and mla, others "
        "are not built");
  CHECK(refusal([](Model& m) { m.layers[3].kind = lariat::LayerKind::kMla; }) ==
        "InvalidArgument: model: mla.kv_lora_rank is 0; allowed: >= 1");
  const auto latent_refusal = [&](auto spoil) {
    ModelConfig model = *lariat::ModelPreset("deepseek-v3");
    spoil(model);
    const Result<ModelCost> cost = lariat::MakeModelCost(model, DType::kBF16);
    REQUIRE_FALSE(cost.ok());
    return cost.status().ToString();
  };
  CHECK(latent_refusal([](Model& m) { m.mla.v_head_dim = 0; }) ==
        "InvalidArgument: model: mla.v_head_dim is 0; allowed: >= 1");
  CHECK(latent_refusal([](Model& m) { m.mla.q_lora_rank = -1; }) ==
        "InvalidArgument: model: mla.q_lora_rank is -1; allowed: >= 0");
  CHECK(latent_refusal([](Model& m) { m.layers[60].k_dim = 512; }) ==
        "InvalidArgument: model: layers[].k_dim is 512; allowed: 576, which is kv_lora_rank + "
        "qk_rope_head_dim");
}

TEST_CASE("the built-in device is the file, and every number has a source") {
  CHECK(lariat::DeviceNames() == std::vector<std::string>{"h200"});
  const Result<DeviceSpec> file = LoadDevice(kRoot + "/devices/h200.json");
  REQUIRE(file.ok());
  const DeviceSpec built_in = H200();
  CHECK(built_in.name == "h200");
  for (const DeviceSpec* spec : {&built_in, &*file}) {
    CHECK(spec->flops.value == 989.4e12);
    CHECK(spec->bytes_per_s.value == 4.8e12);
    CHECK(spec->decode_attention.bytes.value == 0.91);
    CHECK(spec->append_bytes.value == 0.83);
    CHECK(spec->kernels_per_layer.value == 10.0);
    CHECK(spec->device_to_host_bytes_per_s.value == 55.2e9);
    CHECK(spec->gemm.flops.source.find("measured on one H200") == 0);
    CHECK_FALSE(spec->memory_bytes.source.empty());
  }
}

TEST_CASE("device files that cannot be used") {
  using Json = nlohmann::json;
  const std::string path =
      (std::filesystem::temp_directory_path() / "lariat_cost_model_test_device.json").string();
  const auto refusal = [&](auto spoil) {
    Json json = Json::parse(ReadText(kRoot + "/devices/h200.json"));
    spoil(json);
    std::ofstream(path) << json;
    const Result<DeviceSpec> device = LoadDevice(path);
    std::filesystem::remove(path);
    REQUIRE_FALSE(device.ok());
    CHECK(device.status().code() == lariat::Code::kInvalidArgument);
    const std::string message = device.status().message();
    REQUIRE(message.substr(0, path.size() + 2) == path + ": ");
    return message.substr(path.size() + 2);
  };
  CHECK(refusal([](Json& j) { j.erase("name"); }) == "name is missing or empty; allowed: a text");
  CHECK(refusal([](Json& j) { j.erase("flops"); }) == "flops is missing");
  CHECK(refusal([](Json& j) { j["flops"] = 3; }) == "flops.value is missing or no number");
  CHECK(refusal([](Json& j) { j["gemm"] = 3; }) == "gemm.e_f is missing");
  CHECK(refusal([](Json& j) { j["gemm"].erase("e_b"); }) == "gemm.e_b is missing");
  CHECK(refusal([](Json& j) { j["gemm"]["e_g"] = 3; }) == "gemm.e_g is not known");
  CHECK(refusal([](Json& j) { j["flop"] = 3; }) == "flop is not known");
  CHECK(refusal([](Json& j) { j["append"]["e_b"].erase("source"); }) ==
        "append.e_b.source is missing; allowed: a text that says where the number is from");
  CHECK(refusal([](Json& j) { j["append"]["e_b"]["source"] = ""; }).substr(0, 17) ==
        "append.e_b.source");
  CHECK(refusal([](Json& j) { j["gemm"]["e_f"]["value"] = 1.5; }) ==
        "gemm.e_f.value is 1.5; allowed: above 0, up to 1");
  CHECK(refusal([](Json& j) { j["gemm"]["e_f"]["value"] = 0; }) ==
        "gemm.e_f.value is 0; allowed: above 0, up to 1");
  CHECK(refusal([](Json& j) { j["step_overhead_s"]["value"] = -1; }) ==
        "step_overhead_s.value is -1; allowed: 0..1e+30");
  CHECK(refusal([](Json& j) { j["flops"]["value"] = "fast"; }) ==
        "flops.value is missing or no number");
  CHECK(refusal([](Json& j) { j = Json::array(); }) == "file is not a JSON object");

  std::ofstream(path) << "{\"name\": ";
  CHECK(LoadDevice(path).status().message() == path + ": is not JSON");
  std::ofstream(path) << std::string((1 << 20) + 1, ' ');
  CHECK(LoadDevice(path).status().message() == path + ": is over 1 MiB long");
  std::filesystem::remove(path);
  CHECK(LoadDevice("h100").status().message() ==
        "device 'h100': No such file or directory; allowed: h200, or the path of a device file");
  CHECK(LoadDevice(kRoot).status().message().find("is a directory") != std::string::npos);
}
