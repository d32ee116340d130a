// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <prometheus/metric_family.h>

#include <cstdint>
#include <vector>

#include "lariat/kv_cache.h"
#include "lariat/session.h"

// The library's counters as families of prometheus-cpp. These two files stand alone: copy them into
// a server, and return the families from a prometheus::Collectable or hand them to a
// TextSerializer.

namespace lariat::examples {

// lariat_...: one cache. Several ranks: add a label of yours to each metric.
std::vector<prometheus::MetricFamily> ToPrometheus(const Stats& stats);

// lariat_session_...: one session.
std::vector<prometheus::MetricFamily> ToPrometheus(const SessionStats& stats, std::int64_t waiting,
                                                   std::int64_t running);

}  // namespace lariat::examples
