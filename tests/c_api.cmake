# SPDX-License-Identifier: Apache-2.0
# The C API from C, and from Python.
enable_language(C)
find_package(Python3 3.8 REQUIRED COMPONENTS Interpreter)
set(c_flags -Wall -Wextra -Wpedantic -Wshadow -Wconversion -ffp-contract=off)
if(LARIAT_WERROR)
  list(APPEND c_flags -Werror)
endif()
if(LARIAT_SANITIZE)
  list(APPEND c_flags -fsanitize=${LARIAT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
endif()

# The C headers compile alone, twice, as C11.
set(header_sources)
foreach(header lariat.h dlpack.h)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.c)
  file(CONFIGURE OUTPUT ${source}
    CONTENT "#include \"lariat/${header}\"\n#include \"lariat/${header}\"\ntypedef int not_empty;\n")
  list(APPEND header_sources ${source})
endforeach()
add_library(lariat_c_header_check OBJECT ${header_sources})
target_include_directories(lariat_c_header_check PRIVATE ${PROJECT_SOURCE_DIR}/include)

add_executable(c_api_test c_api/main.c c_api/arguments.c c_api/events.c c_api/keeping.c c_api/life.c
               c_api/readers.c c_api/views.c)
target_include_directories(c_api_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(c_api_test PRIVATE lariat_core m)
foreach(target lariat_c_header_check c_api_test)
  set_target_properties(${target} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE ${c_flags})
endforeach()
foreach(case life drafts exhaustion keeping versions nulls sizes config tensors windows tier latents compress
        readers events)
  add_test(NAME "c_api_test: ${case}" COMMAND c_api_test ${case})
  set_tests_properties("c_api_test: ${case}" PROPERTIES TIMEOUT 60)
endforeach()

add_test(NAME "house: symbols"
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/symbols_test.py ${CMAKE_NM}
          ${PROJECT_SOURCE_DIR} $<TARGET_FILE:lariat_core>
          $<$<TARGET_EXISTS:lariat_session>:$<TARGET_FILE:lariat_session>>
          $<$<TARGET_EXISTS:lariat_c>:$<TARGET_FILE:lariat_c>>)
# (Python would have to be run with a sanitizer's library in front.)
if(TARGET lariat_c AND NOT LARIAT_SANITIZE)
  add_test(NAME "examples: the C API from Python with numpy"
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/python_test.py
            ${PROJECT_SOURCE_DIR}/examples/python/numpy_view.py $<TARGET_FILE:lariat_c>)
  set_tests_properties("examples: the C API from Python with numpy" PROPERTIES
    SKIP_REGULAR_EXPRESSION "SKIPPED: " TIMEOUT 60)
endif()
