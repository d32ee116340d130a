# SPDX-License-Identifier: Apache-2.0
# tiny_server, where the system has cpp-httplib (Debian: libcpp-httplib-dev); its /metrics, where it
# has prometheus-cpp too (Debian: prometheus-cpp-dev). Neither is needed for anything else.
find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  # Debian's is a shared library; the flags that it was built with belong to its classes' layout.
  pkg_check_modules(LARIAT_HTTPLIB QUIET IMPORTED_TARGET cpp-httplib>=0.11)
endif()
if(LARIAT_HTTPLIB_FOUND)
  set(httplib PkgConfig::LARIAT_HTTPLIB)
else()
  find_package(httplib 0.11 CONFIG QUIET)
  if(httplib_FOUND)
    set(httplib httplib::httplib)
  endif()
endif()
if(NOT httplib)
  set(LARIAT_SERVER_SUMMARY "no (no cpp-httplib)" PARENT_SCOPE)
  return()
endif()

add_executable(tiny_server examples/tiny_server.cc examples/api.cc examples/api_parse.cc
                           examples/engine.cc examples/http_server.cc examples/llama.cc
                           examples/llama_load.cc)
lariat_target(tiny_server)
# What is run once, and long in compiling.
set(level $<$<CONFIG:Release>:-O1>)
if(LARIAT_SANITIZE)
  set(level -O0)
endif()
set_source_files_properties(examples/tiny_server.cc examples/api_parse.cc examples/llama_load.cc
  PROPERTIES COMPILE_OPTIONS ${level} SKIP_PRECOMPILE_HEADERS ON)
lariat_precompile(tiny_server <nlohmann/json.hpp>)
# Newer versions of cpp-httplib lack functions that older ones want overridden.
target_compile_options(tiny_server PRIVATE
  $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wno-inconsistent-missing-override>)
target_include_directories(tiny_server PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(tiny_server PRIVATE lariat::session ${httplib} CLI11::CLI11
                                          nlohmann_json::nlohmann_json Threads::Threads)
find_package(prometheus-cpp CONFIG QUIET)
if(TARGET prometheus-cpp::core)
  target_sources(tiny_server PRIVATE examples/metrics.cc)
  target_compile_definitions(tiny_server PRIVATE LARIAT_EXAMPLE_PROMETHEUS)
  target_link_libraries(tiny_server PRIVATE prometheus-cpp::core)
  set(LARIAT_SERVER_SUMMARY "yes, with metrics" PARENT_SCOPE)
else()
  set(LARIAT_SERVER_SUMMARY "yes, without metrics (no prometheus-cpp)" PARENT_SCOPE)
endif()
