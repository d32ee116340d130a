# SPDX-License-Identifier: Apache-2.0
# lariat_target(NAME): the settings every target of this project shares. Nothing global is set, so
# that the tree can be a part of another one.
function(lariat_target name)
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF CUDA_STANDARD 20
                                           CUDA_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON)
  set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
               -Wnon-virtual-dtor -Woverloaded-virtual)
  # Products and sums are rounded one by one (docs/numerics.md), so no contraction into FMA.
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:${warnings};-ffp-contract=off>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-ffp-contract=off;--expt-relaxed-constexpr>)
  if(LARIAT_WERROR)
    target_compile_options(${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Werror>
      $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>)
  endif()
  if(LARIAT_SANITIZE)
    target_compile_options(${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LARIAT_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
    target_link_options(${name} PUBLIC -fsanitize=${LARIAT_SANITIZE})
  endif()
endfunction()

# lariat_compile_quickly(NAME): for a program whose time goes into the libraries that it calls. To
# optimise its own code would cost more, above all with what a sanitizer adds, than it gains.
function(lariat_compile_quickly name)
  set(level $<$<CONFIG:Release>:-O0>)
  if(LARIAT_SANITIZE)
    set(level -O0)
  endif()
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${level}>)
endfunction()

# lariat_precompile(NAME [HEADERS...]): with a sanitizer, what most files of NAME include is read once,
# and HEADERS too. Without one each file is compiled as it stands, so that it includes what it needs.
function(lariat_precompile name)
  if(LARIAT_SANITIZE AND LARIAT_PCH)
    target_precompile_headers(${name} PRIVATE
      <algorithm> <array> <charconv> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory>
      <mutex> <optional> <span> <string> <string_view> <utility> <vector>
      ${PROJECT_SOURCE_DIR}/include/lariat/kv_cache.h ${ARGN})
  endif()
endfunction()
