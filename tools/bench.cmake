# SPDX-License-Identifier: Apache-2.0
# `lariat bench`.
find_package(benchmark 1.7 REQUIRED)
find_package(Threads REQUIRED)
target_sources(lariat_tool PRIVATE cmd_bench.cc bench_append.cc bench_ceiling.cc bench_ceiling_cpu.cc
                                   bench_compare.cc bench_data.cc bench_explain.cc bench_host.cc bench_manager.cc bench_mla_append.cc
                                   bench_mla_compress.cc bench_mla_expand.cc bench_ops.cc bench_product.cc
                                   bench_rope_update.cc bench_rows.cc bench_run.cc bench_shape.cc bench_swap.cc bench_tier.cc
                                   bench_timer_cpu.cc
                                   bench_workload.cc)
target_compile_definitions(lariat_tool PRIVATE LARIAT_HAVE_BENCH)
target_link_libraries(lariat_tool PRIVATE benchmark::benchmark lariat::cblas Threads::Threads)
if(LARIAT_WITH_CUDA)
  target_sources(lariat_tool PRIVATE bench_ceiling_cuda.cu bench_explain_cuda.cc bench_product_cuda.cc
                                     bench_timer_cuda.cu)
  target_compile_definitions(lariat_tool PRIVATE LARIAT_BENCH_CUDA)
  target_link_libraries(lariat_tool PRIVATE CUDA::cudart_static CUDA::cublasLt)
endif()
