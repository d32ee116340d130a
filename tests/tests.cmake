# SPDX-License-Identifier: Apache-2.0
# The test programs, one line each.
lariat_test(rope_test SOURCES rope_test.cc)
lariat_test(rope_golden_test SOURCES rope_golden_test.cc SESSION)
lariat_test(cases_rope_test SOURCES cases_rope_test.cc)
lariat_test(safetensors_test SOURCES safetensors_test.cc SESSION)
lariat_test(model_test SOURCES model_test.cc SESSION)
lariat_test(trace_test SOURCES trace_test.cc trace_errors_test.cc SESSION)
lariat_test(cache_random_test SOURCES cache_random_test.cc support/random_calls.cc
            reference/cache_model.cc reference/cache_model_steps.cc)
lariat_test(cache_steps_test SOURCES cache_steps_test.cc support/row_world.cc support/row_world_calls.cc)
lariat_test(cache_cases_test SOURCES cache_cases_test.cc)
lariat_test(cost_model_test SOURCES cost_model_test.cc SESSION)
lariat_test(synthetic_kv_test SOURCES synthetic_kv_test.cc SESSION)
lariat_test(rope_update_test SOURCES rope_update_test.cc)
lariat_test(session_test SOURCES session_test.cc session_api_test.cc SESSION)
lariat_test(cache_random_slow_test SOURCES cache_random_test.cc support/random_calls.cc
            reference/cache_model.cc reference/cache_model_steps.cc LABEL slow TIMEOUT 1200)
target_compile_definitions(cache_random_slow_test PRIVATE LARIAT_RANDOM_OPERATIONS=1000000)
lariat_test(simulate_test SOURCES simulate_test.cc simulate_check_test.cc SESSION)
