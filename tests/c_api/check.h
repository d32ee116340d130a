/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_C_API_CHECK_H_
#define TESTS_C_API_CHECK_H_
/* The least that a test in C needs. (Catch2 is C++, and these files are to be C.) */
#include <stdio.h>
#include <string.h>

#include "lariat/lariat.h"

extern int failures;

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      printf("%s:%d: FAILED: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                    \
    }                                                                \
  } while (0)

/* That a call answers so; the text of the cache (null: of the thread) is printed where it does not.
 */
#define ANSWERS(cache, code, call)                                                               \
  do {                                                                                           \
    const lariat_code got_ = (call);                                                             \
    if (got_ != (code)) {                                                                        \
      printf("%s:%d: FAILED: %s is %s: %s\n", __FILE__, __LINE__, #call, lariat_code_name(got_), \
             lariat_last_error(cache));                                                          \
      ++failures;                                                                                \
    }                                                                                            \
  } while (0)

#define OK(cache, call) ANSWERS(cache, LARIAT_OK, call)

/* That a call is refused, and its text holds the words. */
#define REFUSES(cache, code, words, call)                                              \
  do {                                                                                 \
    ANSWERS(cache, code, call);                                                        \
    if (strstr(lariat_last_error(cache), words) == NULL) {                             \
      printf("%s:%d: FAILED: %s says \"%s\", not \"%s\"\n", __FILE__, __LINE__, #call, \
             lariat_last_error(cache), words);                                         \
      ++failures;                                                                      \
    }                                                                                  \
  } while (0)

/* A cpu cache of fp32 rows: two full-attention layers of 2 heads, 8 wide in K and 4 in V, of which
 * the second one turns; 12 blocks of 4 tokens. */
enum { kHeads = 2, kKeyDim = 8, kValueDim = 4, kBlock = 4, kBlocks = 12 };
lariat_cache* MakeCache(void);
/* Its configuration; the arrays are static. */
lariat_cache_config BaseConfig(void);

/* Plans, prepares and commits `rows` rows of a sequence, with K and V taken from `k` and `v` where
 * they are not null. Returns the prefix hit. */
int64_t RunStep(lariat_cache* cache, uint64_t sequence, int64_t rows, const float* k,
                const float* v);

/* The cases. */
void TestLife(void);
void TestDrafts(void);
void TestExhaustion(void);
void TestKeeping(void);
void TestEvents(void);
void TestVersions(void);
void TestNulls(void);
void TestSizes(void);
void TestConfig(void);
void TestTensors(void);
void TestWindows(void);
void TestTier(void);
void TestLatents(void);
void TestCompress(void);
void TestReaders(void);

#endif /* TESTS_C_API_CHECK_H_ */
