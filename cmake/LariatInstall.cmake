# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` gives: headers, archives, the C library, the tool (tools/CMakeLists.txt),
# find_package(lariat) with the components lariat, session and c, and pkg-config's lariat,
# lariat-session and lariat-c. No path of this machine is written into it but those of libraries
# that are elsewhere, so that the tree can be moved.
include(CMakePackageConfigHelpers)
set(LARIAT_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lariat)
set(LARIAT_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/lariat)
# Each component has a file of its own.
foreach(component lariat session c)
  if(component STREQUAL "lariat")
    set(target lariat_core)
  else()
    set(target lariat_${component})
  endif()
  if(TARGET ${target})
    install(TARGETS ${target} EXPORT lariat-${component} ARCHIVE LIBRARY)
    install(EXPORT lariat-${component} NAMESPACE lariat:: FILE lariat-${component}-targets.cmake
      DESTINATION ${LARIAT_CMAKE_DIR})
  endif()
endforeach()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/lariat-config.cmake.in
  ${PROJECT_BINARY_DIR}/install/lariat-config.cmake INSTALL_DESTINATION ${LARIAT_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/install/lariat-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/install/lariat-config.cmake
  ${PROJECT_BINARY_DIR}/install/lariat-config-version.cmake
  ${PROJECT_SOURCE_DIR}/cmake/LariatCblas.cmake DESTINATION ${LARIAT_CMAKE_DIR})

# The prefix, seen from where the .pc files lie.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(LARIAT_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up "/prefix/${LARIAT_PC_DIR}" "/prefix/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(LARIAT_PC_PREFIX "\${pcfiledir}/${up}")
endif()
cmake_path(APPEND LARIAT_PC_LIBDIR "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND LARIAT_PC_INCLUDEDIR "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")

# The CBLAS by its name, so that any machine's is found; its folder where no linker looks there.
cmake_path(GET LARIAT_CBLAS_LIBRARY STEM cblas)
cmake_path(GET LARIAT_CBLAS_LIBRARY PARENT_PATH cblas_dir)
string(REGEX REPLACE "^lib" "-l" LARIAT_PC_LIBS "${cblas}")
if(NOT cblas_dir IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  string(PREPEND LARIAT_PC_LIBS "-L${cblas_dir} ")
endif()
set(LARIAT_PC_CUDA "")
if(LARIAT_WITH_CUDA)
  set(LARIAT_PC_CUDA "cudalibdir=${CUDAToolkit_LIBRARY_DIR}\n")
  string(APPEND LARIAT_PC_LIBS
    " -L\${cudalibdir} -Wl,-rpath,\${cudalibdir} -lcublasLt -lcudart_static -ldl -lrt -lpthread")
endif()
set(pkgconfig lariat)
foreach(component session c)
  if(TARGET lariat_${component})
    list(APPEND pkgconfig lariat-${component})
  endif()
endforeach()
foreach(name ${pkgconfig})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in
    ${PROJECT_BINARY_DIR}/install/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/install/${name}.pc DESTINATION ${LARIAT_PC_DIR})
endforeach()
