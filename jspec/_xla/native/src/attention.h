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
constexpr int kKeys = 4;                           // vectors of keys that are turned at once
constexpr int64_t kSlots = kKeys * kLanes;         // slots that are scored at once, or summed

constexpr int64_t kAhead = 2 * kSlots;             // slots that are fetched ahead of their use

// The keys or values of one row and head, one behind the other. In 8 bits each has a scale.
template <class T>
struct Rows {
  static constexpr bool kScaled = sizeof(T) == 1;
  const T* first;
  int64_t count, dim;
  const float* scales;
  const T* at(int64_t number) const { return first + number * dim; }
  Vector scaled(Vector x, int64_t number) const {
    return kScaled ? multiply(x, all(scales[number])) : x;
  }
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
    if (start + kLanes <= keys.count && d + kLanes <= keys.dim) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) {
        __builtin_prefetch(keys.at(start + i + kAhead) + d);
        rows[i] = keys.scaled(load(keys.at(start + i) + d), start + i);
      }
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++)
        rows[i] = start + i < keys.count
                      ? keys.scaled(columns(keys.at(start + i) + d, keys.dim - d), start + i)
                      : zeros();
    }
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) store(into + (d + i) * kLanes, rows[i]);
  }
}

// The scores of N queries with K vectors of keys.
template <int N, int K>
JSPEC_INLINE void scores_of(const float* const* queries, const float* keys, int64_t dim,
                            float* const* into, int64_t at) {
  int64_t wide = rounded_up(dim) * kLanes;
  Vector sums[N][K];
#pragma GCC unroll 8
  for (int n = 0; n < N; n++)
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) sums[n][k] = zeros();
  for (int64_t d = 0; d < dim; d++) {
    Vector key[K];
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) key[k] = load(keys + k * wide + d * kLanes);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      Vector query = all(queries[n][d]);
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) sums[n][k] = multiply_add(query, key[k], sums[n][k]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; n++)
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) store(into[n] + at + k * kLanes, sums[n][k]);
}

// The scores of N queries with `vectors` of keys, K at once.
template <int N, int K>
void scores_with(const float* const* queries, const float* keys, int64_t vectors, int64_t dim,
                 float* const* into, int64_t at) {
  int64_t wide = rounded_up(dim) * kLanes, k = 0;
  for (; k + K <= vectors; k += K)
    scores_of<N, K>(queries, keys + k * wide, dim, into, at + k * kLanes);
  for (; k < vectors; k++)
    scores_of<N, 1>(queries, keys + k * wide, dim, into, at + k * kLanes);
}

// The scores of queries with the keys start .. end, and up to kLanes - 1 behind them.
template <class T>
void score(const Rows<T>& keys, int64_t start, int64_t end, const float* const* queries,
           int64_t count, float* const* into, float* space) {
  int64_t dim = keys.dim, wide = rounded_up(dim) * kLanes;
  for (; start < end; start += kSlots) {
    int64_t vectors = (end - start + kLanes - 1) / kLanes, n = 0;
    if (vectors > kKeys) vectors = kKeys;
    for (int64_t k = 0; k < vectors; k++) turned(keys, start + k * kLanes, space + k * wide);
    for (; n + kScored <= count; n += kScored)
      scores_with<kScored, 2>(queries + n, space, vectors, dim, into + n, start);
    for (; n + 4 <= count; n += 4)
      scores_with<4, kRegisters / 8>(queries + n, space, vectors, dim, into + n, start);
    switch (count - n) {
      case 3: scores_with<3, kRegisters / 8>(queries + n, space, vectors, dim, into + n, start);
        break;
      case 2: scores_with<2, kKeys>(queries + n, space, vectors, dim, into + n, start); break;
      case 1: scores_with<1, kKeys>(queries + n, space, vectors, dim, into + n, start); break;
    }
  }
}

// Adds the values first .. last of a list, or of all, each by its weight, to the sums of N queries.
// A test for each vector whether it is whole took three times as long as all else.
template <class T, int N, int C, bool kWhole>
JSPEC_INLINE void mix(const Rows<T>& values, int64_t column, const int32_t* list, int64_t first,
                      int64_t last, float* const* weights, float* const* sums, int64_t ahead) {
  Vector sum[N][C];
#pragma GCC unroll 8
  for (int n = 0; n < N; n++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) sum[n][c] = load(sums[n] + column + c * kLanes);
  for (int64_t i = first; i < last; i++) {
    const int64_t number = list ? list[i] : i;
    const T* from = values.at(number) + column;
    Vector value[C];
    if (ahead)
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) __builtin_prefetch(from + ahead * values.dim + c * kLanes);
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
      value[c] = values.scaled(
          kWhole ? load(from + c * kLanes)
                 : columns(from + c * kLanes, values.dim - column - c * kLanes),
          number);
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

// All columns of such sums.
template <class T, int N>
void mix_all(const Rows<T>& values, const int32_t* list, int64_t first, int64_t last,
             float* const* weights, float* const* sums, int64_t ahead) {
  if (first >= last) return;
  int64_t column = 0;
  for (; column + kColumns * kLanes <= values.dim; column += kColumns * kLanes)
    mix<T, N, kColumns, true>(values, column, list, first, last, weights, sums, ahead);
  for (; column + 2 * kLanes <= values.dim; column += 2 * kLanes)
    mix<T, N, 2, true>(values, column, list, first, last, weights, sums, ahead);
  for (; column < values.dim; column += kLanes)
    mix<T, N, 1, false>(values, column, list, first, last, weights, sums, ahead);
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

// Some queries of one row and head; slots of one type and nodes of another.
template <class T, class Node>
struct Queries {
  const jspec::Attention& call;
  const jspec::Tile& tile;
  float* keys;   // turned, `key_floats`
  float* space;  // of the queries, one behind the other
  int64_t dim = call.dim, wide = rounded_up(dim), own = rounded_up(call.nodes);
  int64_t live = call.lengths[tile.row] < 0            ? 0
                 : call.lengths[tile.row] > call.slots ? call.slots
                                                       : call.lengths[tile.row];
  int64_t most = rounded_up(live + call.nodes) + kLanes;
  Rows<T> slot_keys, slot_values;
  Rows<Node> node_keys, node_values;
  // Of the queries that see anything: where each lies, how many nodes it sees and its first slot, and
  // the first of all of them.
  int64_t count = 0, begin = live;
  int64_t places[jspec::kMostQueries], seen[jspec::kMostQueries], oldest[jspec::kMostQueries];

  Queries(const jspec::Attention& call, const jspec::Tile& tile, float* space)
      : call(call), tile(tile), keys(space), space(space + jspec::key_floats(call)) {
    int64_t head = tile.row * call.heads + tile.head;
    int64_t at = (head * call.layers + call.layer) * call.slots, own = head * call.nodes * dim;
    const bool scaled = Rows<T>::kScaled;
    slot_keys = {(const T*)call.slot_keys + at * dim, live, dim,
                 scaled ? call.key_scales + at : nullptr};
    slot_values = {(const T*)call.slot_values + at * dim, live, dim,
                   scaled ? call.value_scales + at : nullptr};
    node_keys = {(const Node*)call.node_keys + own, call.nodes, dim, nullptr};
    node_values = {(const Node*)call.node_values + own, call.nodes, dim, nullptr};
  }

  // Of a query: its scores, those of nodes, the list of the nodes that it sees, and its sums.
  float* scores(int64_t i) const { return space + i * (most + 2 * own + wide); }
  float* own_scores(int64_t i) const { return scores(i) + most; }
  int32_t* list(int64_t i) const { return (int32_t*)(own_scores(i) + own); }
  float* sums(int64_t i) const { return own_scores(i) + 2 * own; }

  void score_all() {
    const float* queries[jspec::kMostQueries];
    float *with_slots[jspec::kMostQueries], *with_nodes[jspec::kMostQueries];
    for (int64_t query = tile.first; query < tile.last; query++) {
      int64_t token = tile.row * call.new_nodes + query / call.group, i = count;
      int64_t place = (token * call.heads + tile.head) * call.group + query % call.group;
      places[i] = place * dim, seen[i] = 0;
      for (int64_t other = 0; other < call.nodes; other++)
        if (call.mask[token * call.nodes + other]) list(i)[seen[i]++] = int32_t(other);
      if (!seen[i]) {  // no node: rows of a batch have fewer than there is room for
        for (int64_t d = 0; d < dim; d++) call.mixed[place * dim + d] = 0;
        continue;
      }
      queries[i] = call.queries + place * dim;
      with_slots[i] = scores(i), with_nodes[i] = own_scores(i);
      for (int64_t d = 0; d < wide; d++) sums(i)[d] = 0;
      int64_t from = call.oldest[token];
      oldest[i] = from < 0 ? 0 : from > live ? live : from;
      if (oldest[i] < begin) begin = oldest[i];
      count++;
    }
    score(node_keys, 0, call.nodes, queries, count, with_nodes, keys);
    score(slot_keys, begin, live, queries, count, with_slots, keys);
  }

  template <int N>
  void mix_slots(int64_t i, int64_t first, int64_t last) {
    float *weights[N], *into[N];
    for (int n = 0; n < N; n++) weights[n] = scores(i + n), into[n] = sums(i + n);
    mix_all<T, N>(slot_values, nullptr, first, last, weights, into, i ? 0 : kAhead);
  }

  // What the queries get, after the scores have become weights.
  void mix_values() {
    float totals[jspec::kMostQueries];
    for (int64_t i = 0; i < count; i++) {
      float* found = scores(i);
      for (int64_t n = 0; n < seen[i]; n++) found[live + n] = own_scores(i)[list(i)[n]];
      totals[i] = weights_of(found + oldest[i], live + seen[i] - oldest[i], call.soft_cap);
    }
    for (int64_t slot = begin; slot < live; slot += kSlots) {
      int64_t last = slot + kSlots < live ? slot + kSlots : live;
      for (int64_t i = 0; i < count;) {
        int64_t together = 0, left = count - i;
        while (together < kMixed && together < left && oldest[i + together] <= slot) together++;
        switch (together) {
          case 4: mix_slots<4 < kMixed ? 4 : kMixed>(i, slot, last); break;
          case 3: mix_slots<3 < kMixed ? 3 : kMixed>(i, slot, last); break;
          case 2: mix_slots<2>(i, slot, last); break;
          case 1: mix_slots<1>(i, slot, last); break;
          default: mix_slots<1>(i, oldest[i], last);
        }
        i += together ? together : 1;
      }
    }
    for (int64_t i = 0; i < count; i++) {
      float *weights = scores(i) + live, *into = sums(i), *mixed = call.mixed + places[i];
      mix_all<Node, 1>(node_values, list(i), 0, seen[i], &weights, &into, 0);
      for (int64_t d = 0; d < dim; d++) {
        float found = into[d] / totals[i];
        mixed[d] = std::isfinite(found) ? found : NAN;  // as where XLA computes
      }
    }
  }
};

template <class T, class Node>
void attend_to(const jspec::Attention& call, const jspec::Tile& tile, float* space) {
  Queries<T, Node> queries(call, tile, space);
  queries.score_all();
  queries.mix_values();
}

void attend(const jspec::Attention& call, const jspec::Tile& tile, float* space) {
  switch (call.kind) {
    case jspec::Kind::kInt8: return attend_to<int8_t, float>(call, tile, space);
    case jspec::Kind::kBfloat16: return attend_to<uint16_t, uint16_t>(call, tile, space);
    default: return attend_to<float, float>(call, tile, space);
  }
}

}  // namespace
