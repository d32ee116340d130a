# SPDX-License-Identifier: Apache-2.0
# lariat::cblas: the CPU's matrix products, from any library with the CBLAS interface; OpenBLAS where
# there is a choice. LARIAT_CBLAS_INCLUDE and LARIAT_CBLAS_LIBRARY name another one.
find_path(LARIAT_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas)
find_library(LARIAT_CBLAS_LIBRARY NAMES openblas cblas blas)
mark_as_advanced(LARIAT_CBLAS_INCLUDE LARIAT_CBLAS_LIBRARY)
if(NOT LARIAT_CBLAS_INCLUDE OR NOT LARIAT_CBLAS_LIBRARY)
  message(FATAL_ERROR "No CBLAS was found (cblas.h and a library; Debian: libopenblas-dev)")
endif()
if(NOT TARGET lariat::cblas)
  add_library(lariat::cblas UNKNOWN IMPORTED)
  set_target_properties(lariat::cblas PROPERTIES IMPORTED_LOCATION ${LARIAT_CBLAS_LIBRARY}
                                                 INTERFACE_INCLUDE_DIRECTORIES ${LARIAT_CBLAS_INCLUDE})
endif()
