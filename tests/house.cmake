# SPDX-License-Identifier: Apache-2.0
# Tests of the house itself: floors, headers, documents, the README's example.
find_package(Python3 3.8 REQUIRED COMPONENTS Interpreter)

# Each public header compiles alone, twice, with nothing but include/ on the path.
file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
     ${PROJECT_SOURCE_DIR}/include/lariat/*.h)
set(header_sources)
foreach(header ${headers})
  string(REPLACE ".h" ".cc" source ${CMAKE_CURRENT_BINARY_DIR}/headers/${header})
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
  list(APPEND header_sources ${source})
endforeach()
add_library(lariat_header_check OBJECT ${header_sources})
lariat_target(lariat_header_check)
target_include_directories(lariat_header_check PRIVATE ${PROJECT_SOURCE_DIR}/include)

# The same by clang++ and nvcc, where they are here.
if(NOT LARIAT_SANITIZE)
  find_program(LARIAT_HEADER_CLANG NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
  find_program(LARIAT_HEADER_NVCC nvcc HINTS /usr/local/cuda/bin)
  mark_as_advanced(LARIAT_HEADER_CLANG LARIAT_HEADER_NVCC)
  foreach(compiler CLANG NVCC)
    string(TOLOWER ${compiler} kind)
    add_test(NAME "house: public headers, ${kind}"
      COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/headers_test.py ${PROJECT_SOURCE_DIR}
              ${LARIAT_HEADER_${compiler}})
    set_tests_properties("house: public headers, ${kind}" PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: ")
  endforeach()
endif()

add_executable(readme_example readme_example.cc)
lariat_target(readme_example)
target_link_libraries(readme_example PRIVATE lariat::lariat)
add_test(NAME "house: the README's example" COMMAND readme_example)
set_tests_properties("house: the README's example" PROPERTIES
  PASS_REGULAR_EXPRESSION "^0 of 100 [^\n]*\n96 of 100 ")

# Checks of the sources alone: a sanitizer has no part in them.
if(NOT LARIAT_SANITIZE)
  add_test(NAME "house: includes go down"
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_includes.py ${PROJECT_SOURCE_DIR})
  add_test(NAME "house: the checks fail where they should"
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/checks_test.py ${PROJECT_SOURCE_DIR})
  add_test(NAME "house: documents"
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/docs_test.py ${PROJECT_SOURCE_DIR})
  find_program(LARIAT_DOXYGEN doxygen)
  mark_as_advanced(LARIAT_DOXYGEN)
  if(LARIAT_DOXYGEN)
    add_test(NAME "house: Doxygen finds a comment on all that is public"
      COMMAND ${PROJECT_SOURCE_DIR}/tools/doxygen.sh ${CMAKE_CURRENT_BINARY_DIR}/doxygen)
  else()
    add_test(NAME "house: Doxygen finds a comment on all that is public"
      COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: doxygen is not here")
  endif()
  set_tests_properties("house: Doxygen finds a comment on all that is public" PROPERTIES
    SKIP_REGULAR_EXPRESSION "SKIPPED: ")
  add_test(NAME "house: messages and their cures"
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_messages.py ${PROJECT_SOURCE_DIR})
  add_test(NAME "house: the tables of the benchmarks"
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/bench_tables.py check)
  add_test(NAME "house: how those tables are made"
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/bench_tables_test.py ${PROJECT_SOURCE_DIR})
endif()

set(programs)
if(LARIAT_TOOLS)
  set(programs --program $<TARGET_FILE:lariat_tool>)
  if(TARGET tiny_server)
    list(APPEND programs --program $<TARGET_FILE:tiny_server>)
  endif()
endif()
add_test(NAME "house: what documents name exists"
  COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_docs.py ${PROJECT_SOURCE_DIR} ${programs})

# The machine code of the kernels that have a contract with the kernel before them.
if(LARIAT_WITH_CUDA)
  find_program(LARIAT_CUOBJDUMP cuobjdump HINTS ${CUDAToolkit_BIN_DIR})
  add_test(NAME "house: the kernels' machine code"
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/sass_test.py
            ${LARIAT_CUOBJDUMP} $<TARGET_FILE:lariat_core>)
  set_tests_properties("house: the kernels' machine code" PROPERTIES
    SKIP_REGULAR_EXPRESSION "SKIPPED: ")
endif()

# The README's own line, with what this build made. (A sanitizer would need its flag on it.)
if(NOT LARIAT_SANITIZE)
  if(LARIAT_WITH_CUDA)
    set(cuda_libraries ${CUDAToolkit_LIBRARY_DIR})
  endif()
  add_test(NAME "house: the README's link line"
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/link_test.py ${PROJECT_SOURCE_DIR}
            ${PROJECT_BINARY_DIR} ${CMAKE_CXX_COMPILER} "${cuda_libraries}")
  if(LARIAT_SESSION AND LARIAT_TOOLS AND LARIAT_C_SHARED AND LARIAT_INSTALL)
    foreach(mode installed subdirectory)
      add_test(NAME "house: a project that uses Lariat, ${mode}"
        COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/install_test.py ${mode}
                ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR} ${CMAKE_COMMAND} ${CMAKE_CXX_COMPILER}
                ${CMAKE_C_COMPILER} "${CMAKE_CXX_COMPILER_LAUNCHER}")
      set_tests_properties("house: a project that uses Lariat, ${mode}" PROPERTIES
        SKIP_REGULAR_EXPRESSION "SKIPPED: " TIMEOUT 900)
    endforeach()
    # It compiles the archive, two files at a time.
    set_tests_properties("house: a project that uses Lariat, subdirectory" PROPERTIES PROCESSORS 2 COST 100)
  endif()
endif()

if(LARIAT_TOOLS)
  set(sanitized)
  if(LARIAT_SANITIZE)
    set(sanitized sanitized)
  endif()
  add_test(NAME "bench: small shapes on the CPU"
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/bench_test.py $<TARGET_FILE:lariat_tool>
            ${sanitized})
  set_tests_properties("bench: small shapes on the CPU" PROPERTIES TIMEOUT 300 COST 40)
endif()
find_package(Threads REQUIRED)
target_link_libraries(threads_test PRIVATE Threads::Threads)
