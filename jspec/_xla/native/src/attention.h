// Attention of a round: queries over the committed slots that are live, then their own nodes.
//
// A query's keys are visited in the order of their positions, and each of its sums has one order,
// wherever the keys lie and whatever other queries there are. So a node's result has the bits of
// the token in plain decoding.
#pragma once

#include <cmath>

#include "kernels.h"
#include "vectors.h"

namespace {

constexpr int kScored = kRegisters == 32 ? 8 : 4;  // queries that are scored at once
constexpr int kMixed = kRegisters == 32 ? 4 : 2;   // queries whose values are summed at once
constexpr int kColumns = 4;                        // vectors of a value that are summed at once
constexpr int64_t kSlots = 64;                     // slots whose values are summed at once

// The keys or values of one row and head, one behind the other.
template <class T>
struct Rows {
  const T* first;
  int64_t count, dim;
  const T* at(int64_t number) const { return first + number * dim; }
};

JSPEC_INLINE int64_t rounded_up(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

template <class T>
JSPEC_INLINE Vector columns(const T* from, int64_t count) {
  return count >= kLanes ? load(from) : load_part(from, int(count));
}

// The keys start .. start + kLanes with their dimensions in front; zeros where there are none.
template <class T>
void turned(const Rows<T>& keys, int64_t start, float* into) {
  for (int64_t d = 0; d < keys.dim; d += kLanes) {
    Vector rows[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++)
      rows[i] = start + i < keys.count ? columns(keys.at(start + i) + d, keys.dim - d) : zeros();
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) store(into + (d + i) * kLanes, rows[i]);
  }
}

// The scores of N queries with kLanes keys.
template <int N>
void scores_of(const float* const* queries, const float* keys, int64_t dim, float** into,
               int64_t at) {
  Vector sums[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) sums[n] = zeros();
  for (int64_t d = 0; d < dim; d++) {
    Vector key = load(keys + d * kLanes);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) sums[n] = multiply_add(all(queries[n][d]), key, sums[n]);
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) store(into[n] + at, sums[n]);
}

template <class T>
void score(const Rows<T>& keys, int64_t start, const float* const* queries, int64_t count,
           float** into, float* space) {
  for (; start < keys.count; start += kLanes) {
    turned(keys, start, space);
    int64_t n = 0;
    for (; n + kScored <= count; n += kScored)
      scores_of<kScored>(queries + n, space, keys.dim, into + n, start);
    for (; n + 2 <= count; n += 2) scores_of<2>(queries + n, space, keys.dim, into + n, start);
    for (; n < count; n++) scores_of<1>(queries + n, space, keys.dim, into + n, start);
  }
}

// Adds the values first .. last of a list, or of all, each by its weight, to the sums of N queries.
template <class T, int N, int C>
JSPEC_INLINE void mix(const Rows<T>& values, int64_t column, const int32_t* list, int64_t first,
                      int64_t last, float* const* weights, float* const* sums) {
  Vector sum[N][C];
#pragma GCC unroll 8
  for (int n = 0; n < N; n++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) sum[n][c] = load(sums[n] + column + c * kLanes);
  for (int64_t i = first; i < last; i++) {
    const T* from = values.at(list ? list[i] : i) + column;
    Vector value[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
      value[c] = columns(from + c * kLanes, values.dim - column - c * kLanes);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      Vector weight = all(weights[n][i]);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) sum[n][c] = multiply_add(weight, value[c], sum[n][c]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; n++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(sums[n] + column + c * kLanes, sum[n][c]);
}

template <class T, int N>
void mix_all(const Rows<T>& values, const int32_t* list, int64_t first, int64_t last,
             float* const* weights, float* const* sums) {
  if (first >= last) return;
  int64_t column = 0;
  for (; column + kColumns * kLanes <= values.dim; column += kColumns * kLanes)
    mix<T, N, kColumns>(values, column, list, first, last, weights, sums);
  for (; column < values.dim; column += kLanes)
    mix<T, N, 1>(values, column, list, first, last, weights, sums);
}

// Scores become weights, exp(score - largest); returns their sum.
JSPEC_INLINE float weights_of(float* scores, int64_t count, float soft_cap) {
  const float none = -INFINITY;
  if (soft_cap != 0)
    for (int64_t i = 0; i < count; i++) scores[i] = soft_cap * tanhf(scores[i] / soft_cap);
  for (int64_t i = count; i < rounded_up(count); i++) scores[i] = none;
  Vector most = all(none);
  for (int64_t i = 0; i < count; i += kLanes) most = larger(load(scores + i), most);
  Vector top = all(largest(most)), total = zeros();
  for (int64_t i = 0; i < count; i += kLanes) {
    Vector weight = exponential(add(load(scores + i), multiply(top, all(-1.0f))));
    store(scores + i, weight);
    total = add(total, weight);
  }
  return sum(total);
}

template <class T>
void attend_to(const jspec::Attention& call, int64_t row, int64_t head, int64_t first,
               int64_t last, float* space) {
  int64_t dim = call.dim, wide = rounded_up(dim);
  int64_t live = call.lengths[row] < 0 ? 0 : call.lengths[row];
  if (live > call.slots) live = call.slots;
  int64_t own = rounded_up(call.nodes), all_keys = rounded_up(live + call.nodes) + kLanes;

  // Scratch memory: keys turned, then for each query its scores, those of its nodes, their list,
  // and its sums.
  float* keys = space;
  float* at = keys + wide * kLanes;
  const float* queries[jspec::kMostQueries];
  float *scores[jspec::kMostQueries], *own_scores[jspec::kMostQueries], *sums[jspec::kMostQueries];
  float* mixed[jspec::kMostQueries];
  int64_t oldest[jspec::kMostQueries], seen[jspec::kMostQueries];
  int32_t* lists[jspec::kMostQueries];
  int64_t begin = live, count = 0;
  for (int64_t query = first; query < last; query++) {
    int64_t node = query / call.group, mate = query % call.group, i = count;
    int64_t token = row * call.new_nodes + node;
    int64_t place = (token * call.heads + head) * call.group + mate;
    mixed[i] = call.mixed + place * dim;
    lists[i] = (int32_t*)at;
    seen[i] = 0;
    for (int64_t other = 0; other < call.nodes; other++)
      if (call.mask[token * call.nodes + other]) lists[i][seen[i]++] = int32_t(other);
    if (!seen[i]) {  // no node: rows of a batch have fewer than there is room for
      for (int64_t d = 0; d < dim; d++) mixed[i][d] = 0;
      continue;
    }
    at += own;
    queries[i] = call.queries + place * dim;
    scores[i] = at, at += all_keys;
    own_scores[i] = at, at += own;
    sums[i] = at, at += wide;
    for (int64_t d = 0; d < wide; d++) sums[i][d] = 0;
    int64_t from = call.oldest[token];
    oldest[i] = from < 0 ? 0 : from > live ? live : from;
    if (oldest[i] < begin) begin = oldest[i];
    count++;
  }
  if (!count) return;

  int64_t slots_of = (row * call.heads + head) * call.layers + call.layer;
  Rows<T> slot_keys{(const T*)call.slot_keys + slots_of * call.slots * dim, live, dim};
  Rows<T> slot_values{(const T*)call.slot_values + slots_of * call.slots * dim, live, dim};
  int64_t nodes_of = row * call.heads + head;
  Rows<T> node_keys{(const T*)call.node_keys + nodes_of * call.nodes * dim, call.nodes, dim};
  Rows<T> node_values{(const T*)call.node_values + nodes_of * call.nodes * dim, call.nodes, dim};

  score(node_keys, 0, queries, count, own_scores, keys);
  score(slot_keys, begin, queries, count, scores, keys);
  float totals[jspec::kMostQueries];
  for (int64_t i = 0; i < count; i++) {
    for (int64_t n = 0; n < seen[i]; n++) scores[i][live + n] = own_scores[i][lists[i][n]];
    totals[i] = weights_of(scores[i] + oldest[i], live + seen[i] - oldest[i], call.soft_cap);
  }

  for (int64_t slot = begin; slot < live; slot += kSlots) {
    int64_t end = slot + kSlots < live ? slot + kSlots : live;
    for (int64_t i = 0; i < count;) {
      bool together = i + kMixed <= count;
      for (int n = 0; together && n < kMixed; n++) together = oldest[i + n] <= slot;
      if (together) {
        mix_all<T, kMixed>(slot_values, nullptr, slot, end, scores + i, sums + i);
        i += kMixed;
      } else {
        mix_all<T, 1>(slot_values, nullptr, slot > oldest[i] ? slot : oldest[i], end, scores + i,
                      sums + i);
        i++;
      }
    }
  }
  for (int64_t i = 0; i < count; i++) {
    float* own_weights = scores[i] + live;
    mix_all<T, 1>(node_values, lists[i], 0, seen[i], &own_weights, sums + i);
    for (int64_t d = 0; d < dim; d++) {
      float found = sums[i][d] / totals[i];
      mixed[i][d] = std::isfinite(found) ? found : NAN;  // as where XLA computes
    }
  }
}

void attend(const jspec::Attention& call, int64_t row, int64_t head, int64_t first, int64_t last,
            float* space) {
  switch (call.kind) {
    case jspec::Kind::kFloat32: return attend_to<float>(call, row, head, first, last, space);
    case jspec::Kind::kBfloat16: return attend_to<uint16_t>(call, row, head, first, last, space);
    case jspec::Kind::kInt8: return;
  }
}

}  // namespace
