# SPDX-License-Identifier: Apache-2.0
# lariat::cblas: the CPU's matrix products, from any library with the CBLAS interface; OpenBLAS where
# there is a choice. LARIAT_CBLAS_INCLUDE and LARIAT_CBLAS_LIBRARY name another one. Who uses an
# installed Lariat needs the library alone.
find_library(LARIAT_CBLAS_LIBRARY NAMES openblas cblas blas)
mark_as_advanced(LARIAT_CBLAS_LIBRARY)
set(LARIAT_CBLAS_MISSING "")
if(NOT LARIAT_CBLAS_LIBRARY)
  set(LARIAT_CBLAS_MISSING "no CBLAS was found (LARIAT_CBLAS_LIBRARY; Debian: libopenblas-dev)")
endif()
if(NOT CMAKE_FIND_PACKAGE_NAME STREQUAL "lariat")
  find_path(LARIAT_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas)
  mark_as_advanced(LARIAT_CBLAS_INCLUDE)
  if(LARIAT_CBLAS_MISSING OR NOT LARIAT_CBLAS_INCLUDE)
    message(FATAL_ERROR "No CBLAS was found (cblas.h and a library; Debian: libopenblas-dev)")
  endif()
elseif(LARIAT_CBLAS_MISSING)
  set(lariat_FOUND FALSE)
  set(lariat_NOT_FOUND_MESSAGE ${LARIAT_CBLAS_MISSING})
  return()
endif()
if(NOT TARGET lariat::cblas)
  add_library(lariat::cblas UNKNOWN IMPORTED)
  set_target_properties(lariat::cblas PROPERTIES IMPORTED_LOCATION ${LARIAT_CBLAS_LIBRARY})
  if(LARIAT_CBLAS_INCLUDE)
    set_target_properties(lariat::cblas PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES ${LARIAT_CBLAS_INCLUDE})
  endif()
endif()
