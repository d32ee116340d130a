# SPDX-License-Identifier: Apache-2.0
# decode_loop: a server's use of a KVCache in one file, with kernels of its own; needs a GPU to run.
if(LARIAT_WITH_CUDA)
  add_executable(decode_loop examples/decode_loop.cu)
  lariat_target(decode_loop)
  target_link_libraries(decode_loop PRIVATE lariat::lariat CUDA::cudart_static)
endif()
