# SPDX-License-Identifier: Apache-2.0
# That Lariat set nothing for the project that it is a part of: no flag, no standard, no test, no
# rule of installation, no tool.
foreach(variable CMAKE_CXX_STANDARD CMAKE_POSITION_INDEPENDENT_CODE CMAKE_CXX_VISIBILITY_PRESET
        CMAKE_MODULE_PATH BUILD_SHARED_LIBS BUILD_TESTING CMAKE_CUDA_ARCHITECTURES
        CMAKE_RUNTIME_OUTPUT_DIRECTORY CMAKE_ARCHIVE_OUTPUT_DIRECTORY)
  if(DEFINED ${variable})
    message(SEND_ERROR "Lariat set ${variable} to '${${variable}}'")
  endif()
endforeach()
if(NOT CMAKE_CXX_FLAGS STREQUAL "")
  message(SEND_ERROR "Lariat set CMAKE_CXX_FLAGS to '${CMAKE_CXX_FLAGS}'")
endif()
foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES LINK_OPTIONS)
  get_directory_property(value ${property})
  if(value)
    message(SEND_ERROR "Lariat set the folder's ${property} to '${value}'")
  endif()
endforeach()
get_target_property(options lariat::lariat INTERFACE_COMPILE_OPTIONS)
if(options)
  message(SEND_ERROR "lariat::lariat makes its users compile with '${options}'")
endif()
foreach(target lariat_tool lariat_c lariat_test_main)
  if(TARGET ${target})
    message(SEND_ERROR "there is a target ${target}")
  endif()
endforeach()
