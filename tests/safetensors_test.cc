// SPDX-License-Identifier: Apache-2.0
// The safetensors reader on files made here, whole and broken.
#include "lariat/safetensors.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "support/catch.h"

namespace lariat {
namespace {

template <class T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A file with this header and these data.
std::string File(const std::string& header, const std::string& data = "") {
  return Bytes(std::vector<std::uint64_t>{header.size()}) + header + data;
}

Result<SafetensorsFile> Parse(const std::string& bytes) {
  return SafetensorsFile::FromStream(std::make_unique<std::istringstream>(bytes), "test");
}

// A folder of this test's own, removed at the end.
class TempFolder {
 public:
  TempFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("lariat_safetensors_" + std::to_string(std::bit_cast<std::uintptr_t>(this)))) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary) << bytes;
    return file.string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST_CASE("A safetensors file gives back what was written") {
  // Names out of order of their data, empty tensors, a scalar, and padding behind the header.
  const std::string header = R"({"z":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                             R"("__metadata__":{"format":"pt","B":"2"},)"
                             R"("empty":{"dtype":"I64","shape":[4,0],"data_offsets":[24,24]},)"
                             R"("a":{"shape":[],"data_offsets":[24,32],"dtype":"F64"},)"
                             R"("none":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}   )";
  const std::vector<float> z = {1.5F, -2.0F, 0.0F, 3.25F, 1e30F, -0.0F};
  Result<SafetensorsFile> file = Parse(File(header, Bytes(z) + Bytes(std::vector{0.1})));
  REQUIRE(file.ok());
  CHECK(file->metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"B", "2"}});
  REQUIRE(file->tensors().size() == 4);
  CHECK(file->tensors()[0].name == "none");
  CHECK(file->tensors()[1].name == "z");
  CHECK(file->tensors()[2].name == "empty");
  CHECK(file->tensors()[3].name == "a");
  const SafetensorsTensor* tensor = file->Find("z");
  REQUIRE(tensor != nullptr);
  CHECK(tensor->type == SafetensorsType::kF32);
  CHECK(tensor->shape == std::vector<std::int64_t>{2, 3});
  CHECK(tensor->elements == 6);
  CHECK(file->Find("a")->elements == 1);
  CHECK(file->Find("b") == nullptr);

  // In any order, and more than once.
  CHECK(*file->Read<double>("a") == std::vector<double>{0.1});
  const Result<std::vector<float>> got = file->Read<float>("z");
  REQUIRE(got.ok());
  CHECK(Bytes(*got) == Bytes(z));
  CHECK(file->Read<std::int64_t>("empty")->empty());
  CHECK(*file->ReadAsDouble("z") == std::vector<double>(z.begin(), z.end()));
  CHECK(*file->ReadAsDouble("a") == std::vector<double>{0.1});

  const Result<std::vector<double>> missing = file->Read<double>("b");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.status().code() == Code::kInvalidArgument);
  CHECK(missing.status().message() == "test: there is no tensor 'b'");
  const Result<std::vector<double>> other = file->Read<double>("z");
  REQUIRE_FALSE(other.ok());
  CHECK(other.status().code() == Code::kInvalidArgument);
  CHECK(other.status().message().find("'z' has dtype F32") != std::string::npos);
  CHECK(file->ReadAsDouble("empty").status().code() == Code::kInvalidArgument);
}

TEST_CASE("A file without tensors is whole") {
  Result<SafetensorsFile> file = Parse(File("{}"));
  REQUIRE(file.ok());
  CHECK(file->tensors().empty());
  CHECK(file->metadata().empty());
}

TEST_CASE("Every safetensors dtype has its width and its C++ type") {
  struct Case {
    std::string name;
    std::size_t size;
  };
  for (const Case& c : std::vector<Case>{{"BOOL", 1},
                                         {"U8", 1},
                                         {"I8", 1},
                                         {"F8_E4M3", 1},
                                         {"F8_E5M2", 1},
                                         {"U16", 2},
                                         {"I16", 2},
                                         {"F16", 2},
                                         {"BF16", 2},
                                         {"U32", 4},
                                         {"I32", 4},
                                         {"F32", 4},
                                         {"U64", 8},
                                         {"I64", 8},
                                         {"F64", 8}}) {
    CAPTURE(c.name);
    const std::string header = R"({"t":{"dtype":")" + c.name +
                               R"(","shape":[3],"data_offsets":[0,)" + std::to_string(3 * c.size) +
                               "]}}";
    std::string data(3 * c.size, '\0');
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i + 1);
    Result<SafetensorsFile> file = Parse(File(header, data));
    REQUIRE(file.ok());
    const SafetensorsType type = file->tensors()[0].type;
    CHECK(SafetensorsTypeName(type) == c.name);
    CHECK(SafetensorsTypeSize(type) == static_cast<std::int64_t>(c.size));
    // Exactly one of the C++ types reads it, and reads its bytes.
    int readers = 0;
    const auto count = [&](const auto& values) {
      if (!values.ok()) return;
      ++readers;
      CHECK(Bytes(*values) == data);
    };
    count(file->Read<std::int8_t>("t"));
    count(file->Read<std::uint8_t>("t"));
    count(file->Read<std::int16_t>("t"));
    count(file->Read<std::uint16_t>("t"));
    count(file->Read<std::int32_t>("t"));
    count(file->Read<std::uint32_t>("t"));
    count(file->Read<std::int64_t>("t"));
    count(file->Read<std::uint64_t>("t"));
    count(file->Read<float>("t"));
    count(file->Read<double>("t"));
    CHECK(readers == 1);
  }
}

TEST_CASE("F16 and BF16 become double exactly") {
  const std::string header = R"({"h":{"dtype":"F16","shape":[8],"data_offsets":[0,16]},)"
                             R"("b":{"dtype":"BF16","shape":[6],"data_offsets":[16,28]}})";
  const std::vector<std::uint16_t> half = {0x3C00, 0xC000, 0x3555, 0x7BFF,
                                           0x0001, 0x03FF, 0xFC00, 0x7E00};
  const std::vector<std::uint16_t> bfloat = {0x3F80, 0xC040, 0x0001, 0x7F7F, 0xFF80, 0x7FC0};
  Result<SafetensorsFile> file = Parse(File(header, Bytes(half) + Bytes(bfloat)));
  REQUIRE(file.ok());
  const std::vector<double> h = *file->ReadAsDouble("h");
  REQUIRE(h.size() == 8);
  CHECK(h[0] == 1.0);
  CHECK(h[1] == -2.0);
  CHECK(h[2] == 1365.0 / 4096);
  CHECK(h[3] == 65504.0);
  CHECK(h[4] == 0x1p-24);
  CHECK(h[5] == 1023 * 0x1p-24);
  CHECK(h[6] == -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(h[7]));
  const std::vector<double> b = *file->ReadAsDouble("b");
  REQUIRE(b.size() == 6);
  CHECK(b[0] == 1.0);
  CHECK(b[1] == -3.0);
  CHECK(b[2] == 0x1p-133);
  CHECK(b[3] == 0x1.FEp127);
  CHECK(b[4] == -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(b[5]));
}

struct Broken {
  std::string bytes;
  std::string message;  // a part of it
};

// A header of one tensor "t" with these fields, and 8 bytes of data.
Broken BrokenTensor(const std::string& fields, const std::string& message) {
  return {File("{\"t\":{" + fields + "}}", std::string(8, 'x')), message};
}

TEST_CASE("A broken safetensors file is refused, with the tensor and the field") {
  const std::string t8 = R"("t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string eight(8, 'x');
  const auto size = [](std::uint64_t n) { return Bytes(std::vector<std::uint64_t>{n}); };
  const std::vector<Broken> all = {
      // The file
      {"", "0 bytes are too few"},
      {"1234567", "7 bytes are too few"},
      {size(0), "header: it must begin with {"},
      {size(3) + "{}", "header size is 3; allowed: 0..2 in a file of 10 bytes"},
      {size(~std::uint64_t{0}) + "{}", "header size is 18446744073709551615"},
      {size(std::uint64_t{1} << 63) + "{}", "header size is 9223372036854775808"},
      // The JSON
      {File(" {}"), "header: it must begin with {"},
      {File("\xEF\xBB\xBF{}"), "header: it must begin with {"},
      {File("[]"), "header: it must begin with {"},
      {File("{"), "no valid JSON at byte"},
      {File("{}}"), "no valid JSON at byte"},
      {File("{} {}"), "no valid JSON at byte"},
      {File("{" + t8 + ",}", eight), "no valid JSON at byte"},
      {File("{\"\xFF\":{}}"), "no valid JSON at byte"},
      {File(R"({"t":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}})", eight),
       "no valid JSON at byte"},
      {File(std::string(1 << 20, '{')), "no valid JSON at byte"},
      {File("{\"t\":" + std::string(1 << 20, '[')), "tensor 't': an array is out of place"},
      // Names
      {File("{" + t8 + "," + t8 + "}", eight), "tensor 't': the name occurs twice"},
      {File(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__: the name occurs twice"},
      {File(R"({"__metadata__":{"k":"1","k":"2"}})"), "__metadata__: the key 'k' occurs twice"},
      // The metadata
      {File(R"({"__metadata__":"x"})"), "__metadata__: the string 'x' is out of place"},
      {File(R"({"__metadata__":[]})"), "__metadata__: an array is out of place"},
      {File(R"({"__metadata__":{"k":1}})"), "__metadata__ 'k': the number 1 is out of place"},
      {File(R"({"__metadata__":{"k":null}})"), "__metadata__ 'k': null is out of place"},
      {File(R"({"__metadata__":{"k":{"l":"m"}}})"),
       "__metadata__ 'k': an object is out of place; allowed: strings"},
      // A tensor
      {File(R"({"t":7})"), "tensor 't': the number 7 is out of place; allowed: an object"},
      {File(R"({"t":true})"), "tensor 't': true is out of place"},
      BrokenTensor(R"("shape":[2],"data_offsets":[0,8])", "tensor 't': dtype is missing"),
      BrokenTensor(R"("dtype":"F32","data_offsets":[0,8])", "tensor 't': shape is missing"),
      BrokenTensor(R"("dtype":"F32","shape":[2])", "tensor 't': data_offsets is missing"),
      BrokenTensor("", "tensor 't': dtype is missing"),
      BrokenTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1)",
                   "tensor 't': 'extra' is not a known field"),
      BrokenTensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])",
                   "tensor 't': dtype occurs twice"),
      // dtype
      BrokenTensor(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])",
                   "tensor 't': dtype: 'F33' is not a known type"),
      BrokenTensor(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])",
                   "tensor 't': dtype: 'f32' is not a known type"),
      BrokenTensor(R"("dtype":32,"shape":[2],"data_offsets":[0,8])",
                   "tensor 't': dtype: the number 32 is out of place; allowed: a string"),
      // shape
      BrokenTensor(R"("dtype":"F32","shape":2,"data_offsets":[0,8])",
                   "tensor 't': shape: the number 2 is out of place"),
      BrokenTensor(R"("dtype":"F32","shape":{"0":2},"data_offsets":[0,8])",
                   "tensor 't': shape: an object is out of place"),
      BrokenTensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])",
                   "tensor 't': shape: the number -2 is out of place; allowed: integers >= 0"),
      BrokenTensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])",
                   "tensor 't': shape: the number '2.0' is out of place"),
      BrokenTensor(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])",
                   "tensor 't': shape: an array is out of place"),
      BrokenTensor(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])",
                   "tensor 't': shape: the string '2' is out of place"),
      BrokenTensor(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])",
                   "tensor 't': shape holds 9223372036854775808; allowed: below 2^63"),
      BrokenTensor(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])",
                   "tensor 't': shape: the number '18446744073709551616' is out of place"),
      // 2^32 * 2^32 is 0, 2^62 + 2 fours are 8, both modulo 2^64: sizes that would seem to match.
      BrokenTensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])",
                   "tensor 't': shape has 2^63 bytes or more"),
      BrokenTensor(R"("dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8])",
                   "tensor 't': shape has 2^63 bytes or more"),
      // data_offsets
      BrokenTensor(R"("dtype":"F32","shape":[2],"data_offsets":8)",
                   "tensor 't': data_offsets: the number 8 is out of place"),
      BrokenTensor(R"("dtype":"F32","shape":[2],"data_offsets":[])",
                   "tensor 't': data_offsets has 0 numbers; allowed: 2"),
      BrokenTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])",
                   "tensor 't': data_offsets has 1 numbers; allowed: 2"),
      BrokenTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])",
                   "tensor 't': data_offsets has more than 2 numbers"),
      BrokenTensor(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])",
                   "tensor 't': data_offsets: the number -8 is out of place"),
      BrokenTensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])",
                   "tensor 't': data_offsets [8, 0] end before they begin"),
      BrokenTensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])",
                   "tensor 't': data_offsets span 8 bytes; shape and dtype need 12"),
      BrokenTensor(R"("dtype":"F32","shape":[],"data_offsets":[0,8])",
                   "tensor 't': data_offsets span 8 bytes; shape and dtype need 4"),
      BrokenTensor(R"("dtype":"F32","shape":[0],"data_offsets":[0,8])",
                   "tensor 't': data_offsets span 8 bytes; shape and dtype need 0"),
      BrokenTensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,12])",
                   "tensor 't': data_offsets end at 12, behind the 8 bytes of data"),
      BrokenTensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])",
                   "tensor 't': data_offsets begin at 4, a hole: the tensor before ends at 0"),
      BrokenTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])",
                   "the tensors end at byte 4 of 8 bytes of data"),
      {File("{}", "x"), "the tensors end at byte 0 of 1 bytes of data"},
      {File("{" + t8 + R"(,"u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight),
       "tensor 'u': data_offsets begin at 4, an overlap: the tensor before ends at 8"},
      {File("{" + t8 + R"(,"u":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", eight),
       "data_offsets begin at 0, an overlap: the tensor before ends at 8"},
      {File("{" + t8 + R"(,"u":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
            eight + eight),
       "tensor 'u': data_offsets begin at 12, a hole: the tensor before ends at 8"},
      {File("{" + t8 + R"(,"u":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})", eight),
       "data_offsets begin at 4, an overlap"},
  };
  for (const Broken& broken : all) {
    const Result<SafetensorsFile> file = Parse(broken.bytes);
    CAPTURE(broken.bytes.substr(0, 200), broken.message, file.status().message());
    REQUIRE_FALSE(file.ok());
    CHECK(file.status().code() == Code::kCorruptData);
    CHECK(file.status().message().rfind("test: ", 0) == 0);
    CHECK(file.status().message().find(broken.message) != std::string::npos);
    CHECK(file.status().message().size() < 300);
  }
}

TEST_CASE("No cut and no flipped bit of a safetensors file gets past the checks") {
  const std::string whole =
      File(R"({"__metadata__":{"k":"v"},"t":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
           R"("u":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
           std::string(11, 'x'));
  REQUIRE(Parse(whole).ok());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(Parse(whole.substr(0, length)).status().code() == Code::kCorruptData);
  }
  CHECK(Parse(whole + "x").status().code() == Code::kCorruptData);
  // A flipped bit may leave a whole file (another name, another type of the same width). What is
  // accepted must then hold: tensors fill the data, and all of them can be read.
  for (std::size_t bit = 0; bit < 8 * (whole.size() - 11); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    Result<SafetensorsFile> file = Parse(flipped);
    CAPTURE(bit);
    if (!file.ok()) {
      CHECK(file.status().code() == Code::kCorruptData);
      continue;
    }
    std::int64_t bytes = 0;
    for (const SafetensorsTensor& tensor : file->tensors()) {
      CHECK(tensor.begin == bytes);
      CHECK(tensor.end - tensor.begin == tensor.elements * SafetensorsTypeSize(tensor.type));
      bytes = tensor.end;
    }
    CHECK(bytes == 11);
  }
}

TEST_CASE("A safetensors file is opened by path") {
  const TempFolder folder;
  const std::string header = R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("t":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  const std::vector<float> values = {1.0F, 2.0F, 3.0F};

  const Result<SafetensorsFile> absent = SafetensorsFile::Open(folder.path() + "/absent");
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.status().code() == Code::kInvalidArgument);
  CHECK(absent.status().message().find("/absent: there is no such file") != std::string::npos);
  CHECK(SafetensorsFile::Open(folder.path()).status().code() == Code::kInvalidArgument);

  const std::string path = folder.Write("whole", File(header, Bytes(values)));
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  REQUIRE(file.ok());
  CHECK(*file->Read<float>("t") == std::vector<float>{2.0F, 3.0F});

  // Cut behind the reader's back: an error, and the values are not made up.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  const Result<std::vector<float>> cut = file->Read<float>("t");
  REQUIRE_FALSE(cut.ok());
  CHECK(cut.status().code() == Code::kCorruptData);
  CHECK(cut.status().message().find("tensor 't'") != std::string::npos);
  const Result<std::vector<float>> rest = file->Read<float>("s");
  REQUIRE(rest.ok());
  CHECK(*rest == std::vector<float>{1.0F});

  // A header as large as the file allows but larger than the format does; sparse on disk.
  const std::string huge =
      folder.Write("huge", Bytes(std::vector<std::uint64_t>{100'000'001}) + "{}");
  std::filesystem::resize_file(huge, 200'000'000);
  const Result<SafetensorsFile> large = SafetensorsFile::Open(huge);
  REQUIRE_FALSE(large.ok());
  CHECK(large.status().message().find("header size is 100000001; allowed: 0..100000000") !=
        std::string::npos);
}

}  // namespace
}  // namespace lariat
