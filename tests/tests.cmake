# SPDX-License-Identifier: Apache-2.0
# The test programs, one line each.
lariat_test(rope_test SOURCES rope_test.cc)
lariat_test(rope_golden_test SOURCES rope_golden_test.cc SESSION)
lariat_test(cases_rope_test SOURCES cases_rope_test.cc)
lariat_test(safetensors_test SOURCES safetensors_test.cc SESSION)
lariat_test(model_test SOURCES model_test.cc SESSION)
