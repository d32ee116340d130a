// SPDX-License-Identifier: Apache-2.0
// Uses what only lariat::session has.
#include <cstdio>

#include "lariat/cost_model.h"
#include "lariat/trace.h"

int main() {
  const auto trace = lariat::MakeWorkload("in=8,out=2,n=3");
  const auto device = lariat::LoadDevice("h200");
  if (!trace.ok() || !device.ok()) return 1;
  std::printf("%d requests on %s\n", static_cast<int>(trace->size()), device->name.c_str());
}
