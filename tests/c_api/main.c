/* SPDX-License-Identifier: Apache-2.0 */
/* usage: c_api_test CASE: runs one case; the exit code says whether it passed. */
#include "c_api/check.h"

int failures = 0;

static const struct {
  const char* name;
  void (*run)(void);
} kCases[] = {
    {"life", TestLife},         {"drafts", TestDrafts},     {"exhaustion", TestExhaustion},
    {"keeping", TestKeeping},   {"versions", TestVersions}, {"nulls", TestNulls},
    {"sizes", TestSizes},       {"config", TestConfig},     {"tensors", TestTensors},
    {"windows", TestWindows},   {"tier", TestTier},         {"latents", TestLatents},
    {"compress", TestCompress}, {"readers", TestReaders},   {"events", TestEvents},
};

int main(int argc, char** argv) {
  int ran = 0;
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    if (argc == 2 && strcmp(argv[1], kCases[i].name) == 0) {
      kCases[i].run();
      ++ran;
    }
  }
  if (ran != 1) printf("usage: c_api_test CASE\n");
  return ran == 1 && failures == 0 ? 0 : 1;
}
