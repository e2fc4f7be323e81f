// The largest entries of a row and the logarithm of the sum of its exponentials.
#pragma once

#include <cmath>

#include "kernels.h"
#include "vectors.h"

namespace {

constexpr int64_t kGroup = 128;  // entries of which the largest is kept

// The largest of what is offered, falling; the first of equals comes first.
struct Largest {
  float* values;
  int32_t* places;
  int64_t most, count = 0;
  void offer(float value, int32_t place) {
    if (count == most && !(value > values[most - 1])) return;
    int64_t at = count < most ? count++ : most - 1;
    for (; at > 0 && value > values[at - 1]; at--)
      values[at] = values[at - 1], places[at] = places[at - 1];
    values[at] = value, places[at] = place;
  }
};

JSPEC_INLINE float largest_of(const float* x, int64_t count) {
  Vector most = all(-INFINITY);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) most = larger(load(x + i), most);
  float found = largest(most);
  for (; i < count; i++) found = x[i] > found ? x[i] : found;
  return found;
}

float sum_of_exponentials(const float* x, int64_t count, float most) {
  constexpr int kSums = 4;
  Vector sums[kSums] = {zeros(), zeros(), zeros(), zeros()};
  const Vector shift = all(-most);
  int64_t i = 0;
  for (; i + kSums * kLanes <= count; i += kSums * kLanes)
#pragma GCC unroll 4
    for (int s = 0; s < kSums; s++)
      sums[s] = add(sums[s], exponential(add(load(x + i + s * kLanes), shift)));
  float total = sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  for (; i < count; i++) total += std::exp(x[i] - most);
  return total;
}

// The k largest are in groups whose largest is not below the k largest of these. `space` is `top_floats`.
void top(const jspec::Top& call, int64_t row, float* space) {
  const float* x = call.x + row * call.size;
  const int64_t groups = (call.size + kGroup - 1) / kGroup;
  auto end_of = [&](int64_t group) {
    return (group + 1) * kGroup < call.size ? (group + 1) * kGroup : call.size;
  };
  float* of_groups = space + 2 * call.k;
  Largest best{space, (int32_t*)(space + call.k), call.k < groups ? call.k : groups};
  for (int64_t group = 0; group < groups; group++) {
    of_groups[group] = largest_of(x + group * kGroup, end_of(group) - group * kGroup);
    best.offer(of_groups[group], int32_t(group));
  }
  Largest kept{call.values + row * call.k, call.places + row * call.k, call.k};
  for (int64_t group = 0; group < groups; group++) {
    if (of_groups[group] < best.values[best.most - 1]) continue;
    for (int64_t at = group * kGroup; at < end_of(group); at++) kept.offer(x[at], int32_t(at));
  }
  // A NaN makes the sum one. Without a finite number there is nothing to subtract.
  const float most = best.values[0], shift = std::isfinite(most) ? most : 0;
  const float total = std::log(sum_of_exponentials(x, call.size, shift));
  call.log_sums[row] = most == INFINITY ? most : shift + total;
}

}  // namespace
