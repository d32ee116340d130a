# SPDX-License-Identifier: Apache-2.0
# tiny_server, driven by HTTP clients. Labelled for the tsan preset: it is all threads.
set(sanitized)
if(LARIAT_SANITIZE)
  set(sanitized sanitized)
endif()
function(lariat_server_test name script labels)
  add_test(NAME "server: ${name}"
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${script} $<TARGET_FILE:tiny_server> ${ARGN})
  set_tests_properties("server: ${name}" PROPERTIES TIMEOUT 600 COST 50 LABELS "${labels}"
                       ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp")
endfunction()
lariat_server_test("answers" server_test.py threads)
lariat_server_test("bad requests and slow clients" server_http_test.py threads ${sanitized})
if(LARIAT_SANITIZE)  # a sanitizer's own memory grows, and leaks are seen after 1000 as well
  lariat_server_test("memory after 1000 requests" server_memory_test.py threads 1000 sanitized)
else()
  lariat_server_test("memory after 10000 requests" server_memory_test.py threads 10000)
endif()
set_property(GLOBAL APPEND PROPERTY LARIAT_THREAD_TESTS tiny_server)
