# SPDX-License-Identifier: Apache-2.0
# lariat::xxhash: xxHash as a header alone, so that nothing is linked.
find_path(LARIAT_XXHASH_INCLUDE xxhash.h)
mark_as_advanced(LARIAT_XXHASH_INCLUDE)
if(NOT LARIAT_XXHASH_INCLUDE)
  message(FATAL_ERROR "xxhash.h was not found (Debian: libxxhash-dev)")
endif()
add_library(lariat_xxhash INTERFACE)
add_library(lariat::xxhash ALIAS lariat_xxhash)
target_include_directories(lariat_xxhash SYSTEM INTERFACE ${LARIAT_XXHASH_INCLUDE})
