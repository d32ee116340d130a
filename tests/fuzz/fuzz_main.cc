// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: every file of a corpus as it is, then mutations of them.
//
//   NAME_fuzz [--runs N] [--seed S] [--only I] [--dict FILE] PATH...
//
// PATH is a file or a folder of files. Mutation I depends on the seed, on I and on the corpus
// alone;
// --only I runs that one. When an input ends the process or takes over 20 s, it is written to
// fuzz-crash in the working folder.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"

// Called by the sanitizers before they end the process, where there are any.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Bytes = std::string;

constexpr unsigned kMostSeconds = 20;  // for one input
constexpr std::size_t kMostBytes = 1 << 14;

const Bytes* running = nullptr;  // the input that the target has

void KeepInput() {
  if (running == nullptr) return;
  const int file = open("fuzz-crash", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return;
  const ssize_t written = write(file, running->data(), running->size());
  const char said[] = "fuzz: the input is in ./fuzz-crash\n";
  const ssize_t told = written < 0 ? 0 : write(STDERR_FILENO, said, sizeof(said) - 1);
  (void)told;
  close(file);
}

extern "C" void OnSignal(int number) {
  KeepInput();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// Files in order of their names.
std::vector<Bytes> ReadCorpus(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const std::filesystem::path& file : files) corpus.push_back(ReadFile(file));
  return corpus;
}

// A line of a libFuzzer dictionary, "\"hash_ids\"" as "hash_ids" in quotes; empty: a comment.
Bytes Unquoted(const std::string& line) {
  const std::size_t begin = line.find('"'), end = line.rfind('"');
  if (line.empty() || line[0] == '#' || begin == end) return {};
  Bytes word;
  for (std::size_t i = begin + 1; i < end; ++i) {
    if (line[i] == '\\' && line[i + 1] == 'x' && i + 3 < end) {
      word += static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16));
      i += 3;
    } else {
      i += line[i] == '\\' ? 1 : 0;
      word += line[i];
    }
  }
  return word;
}

std::vector<Bytes> ReadWords(const std::string& path) {
  // Numbers at the edges of what types hold, and what JSON is made of.
  std::vector<Bytes> words = {"0",
                              "-1",
                              "9223372036854775807",
                              "9223372036854775808",
                              "1e308",
                              "1e400",
                              "2147483648",
                              "0.5",
                              "null",
                              "true",
                              "{",
                              "}",
                              "[",
                              "]",
                              ",",
                              ":",
                              "\"",
                              "\\u0000",
                              "\n",
                              "\xEF\xBB\xBF"};
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (const Bytes word = Unquoted(line); !word.empty()) words.push_back(word);
  }
  return words;
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& corpus, const std::vector<Bytes>& words, std::uint64_t seed)
      : corpus_(corpus), words_(words), random_(seed) {}

  Bytes Make() {
    Bytes bytes = Any(corpus_);
    for (std::uint64_t edits = 1 + Below(6); edits > 0; --edits) Edit(bytes);
    if (bytes.size() > kMostBytes) bytes.resize(kMostBytes);
    return bytes;
  }

 private:
  std::uint64_t Below(std::uint64_t n) { return random_() % n; }
  const Bytes& Any(const std::vector<Bytes>& of) { return of[Below(of.size())]; }
  std::size_t Place(const Bytes& bytes) { return Below(bytes.size() + 1); }

  void Edit(Bytes& bytes) {
    const std::size_t at = Place(bytes);
    const std::size_t length = std::min<std::size_t>(bytes.size() - at, 1 + Below(32));
    switch (Below(7)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(Below(256));
        break;
      case 2: bytes.erase(at, length); break;
      case 3: bytes.insert(at, bytes.substr(Place(bytes), length)); break;
      case 4: bytes.insert(at, Any(words_)); break;
      case 5: ReplaceWord(bytes, at); break;
      default: {
        const Bytes& other = Any(corpus_);
        bytes = bytes.substr(0, at) + other.substr(Place(other));
      }
    }
  }

  // The word or number at `at` becomes another.
  void ReplaceWord(Bytes& bytes, std::size_t at) {
    constexpr const char* kEnds = " ,:[]{}\"\r\n";
    const std::size_t begin = bytes.find_first_not_of(kEnds, at);
    if (begin == Bytes::npos) return;
    const std::size_t end = std::min(bytes.find_first_of(kEnds, begin), bytes.size());
    bytes.replace(begin, end - begin, Any(words_));
  }

  const std::vector<Bytes>& corpus_;
  const std::vector<Bytes>& words_;
  std::mt19937_64 random_;
};

void RunOne(const Bytes& bytes) {
  // Of its own, without room behind it, so that a sanitizer sees a read beyond.
  const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  running = &bytes;
  alarm(kMostSeconds);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  alarm(0);
  running = nullptr;
}

struct Options {
  std::uint64_t runs = 1000;
  std::uint64_t seed = 1;
  std::uint64_t only = 0;
  bool has_only = false;
  std::string dict;
  std::vector<std::string> paths;
};

Options ReadOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool last = i + 1 == argc;
    if (flag.substr(0, 2) != "--" || last) {
      options.paths.push_back(flag);
    } else if (flag == "--dict") {
      options.dict = argv[++i];
    } else {
      const std::uint64_t value = std::stoull(argv[++i]);
      if (flag == "--runs") options.runs = value;
      if (flag == "--seed") options.seed = value;
      if (flag == "--only") {
        options.only = value;
        options.has_only = true;
      }
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = ReadOptions(argc, argv);
  const std::vector<Bytes> corpus = ReadCorpus(options.paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s [--runs N] [--seed S] [--only I] [--dict FILE] PATH...\n",
                 argv[0]);
    return 2;
  }
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM}) {
    // A sanitizer has handlers of its own for the others, and calls back.
    if (__sanitizer_set_death_callback != nullptr && number != SIGABRT && number != SIGALRM)
      continue;
    std::signal(number, OnSignal);
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(KeepInput);

  const std::vector<Bytes> words = ReadWords(options.dict);
  const auto mutation = [&](std::uint64_t i) {
    return Mutator(corpus, words, options.seed * 0x9e3779b97f4a7c15U + i).Make();
  };
  if (options.has_only) {
    RunOne(mutation(options.only));
    return 0;
  }
  RunOne({});
  for (const Bytes& bytes : corpus) RunOne(bytes);
  for (std::uint64_t i = 0; i < options.runs; ++i) RunOne(mutation(i));
  std::printf("fuzz: %zu inputs and %llu mutations held\n", corpus.size(),
              static_cast<unsigned long long>(options.runs));
  return 0;
}
