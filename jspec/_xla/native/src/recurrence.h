// Recurrent layers of a round: a matrix a head, from each node's parent's, and a short convolution.
//
// A state is S' = f S + k u, and what a query reads of it is f (S q) + u (k q), so that no state is
// made of a node without children. Each number has one order of sums, whatever other nodes there
// are: a node's result has the bits of the token in plain decoding, and so has the state behind it.
#pragma once

#include "kernels.h"
#include "vectors.h"

namespace {

constexpr int kBeside = kRegisters == 32 ? 4 : 2;  // vectors of a state's row that go together
constexpr int64_t kTogether = 16;                  // steps whose updates stay in the first cache

JSPEC_INLINE Vector some(const float* from, int64_t count) {
  return count >= kLanes ? load(from) : load_part(from, int(count));
}

JSPEC_INLINE void store_some(float* to, Vector x, int64_t count) {
  if (count >= kLanes) return store(to, x);
  alignas(64) float lanes[kLanes];
  store(lanes, x);
  for (int64_t i = 0; i < count; i++) to[i] = lanes[i];
}

JSPEC_INLINE float dot(const float* x, const float* y, int64_t count) {
  Vector total = zeros();
  for (int64_t i = 0; i < count; i += kLanes)
    total = multiply_add(some(x + i, count - i), some(y + i, count - i), total);
  return sum(total);
}

// A state after a step.
JSPEC_INLINE Vector stepped(Vector state, Vector factor, Vector key, Vector value) {
  return multiply_add(key, value, multiply(state, factor));
}

// C columns of a state: of each key a row, `stride` behind each other.
template <int C>
struct Columns {
  const float* from;
  int64_t stride;
};

// A step whose state is not made yet.
template <int C>
struct Pending {
  float* to = nullptr;
  const float* key;
  Vector factor, values[C];
};

// S q, and by the delta rule S k, of columns of a state; the pending step is made in passing.
template <bool Delta, int C, bool Makes>
JSPEC_INLINE void read_state(Columns<C> state, int64_t keys, const float* q, const float* k,
                             const Pending<C>& pending, Vector (&read)[C], Vector (&held)[C]) {
  // Sums of every other key, where there would be too few of them to fill the pipes.
  constexpr int kWays = Delta && kRegisters == 32 ? 1 : 2;
  Vector reads[kWays][C], helds[kWays][C];
#pragma GCC unroll 2
  for (int way = 0; way < kWays; way++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) reads[way][c] = helds[way][c] = zeros();
  auto one = [&](int64_t i, int way) __attribute__((always_inline)) {
    Vector query = all(q[i]), key = all(k[i]);
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
      Vector x = load(state.from + i * state.stride + c * kLanes);
      if (Makes) {
        x = stepped(x, pending.factor, all(pending.key[i]), pending.values[c]);
        store(pending.to + (i * C + c) * kLanes, x);
      }
      reads[way][c] = multiply_add(query, x, reads[way][c]);
      if (Delta) helds[way][c] = multiply_add(key, x, helds[way][c]);
    }
  };
  int64_t i = 0;
  for (; i + kWays <= keys; i += kWays)
#pragma GCC unroll 2
    for (int way = 0; way < kWays; way++) one(i + way, way);
  if (i < keys) one(i, 0);
#pragma GCC unroll 4
  for (int c = 0; c < C; c++) {
    read[c] = kWays == 2 ? add(reads[0][c], reads[kWays - 1][c]) : reads[0][c];
    if (Delta) held[c] = kWays == 2 ? add(helds[0][c], helds[kWays - 1][c]) : helds[0][c];
  }
}

// What a head's queries read, in C vectors of columns from `column` on, of all nodes of a row.
template <bool Delta, int C>
void recur_columns(const jspec::Recurrence& call, int64_t row, int64_t head, int64_t column,
                   const jspec::Step* steps, int64_t count, float* space) {
  const int64_t keys = call.key_dim, dim = call.value_dim, left = dim - column;
  const int64_t of_head = row * call.heads + head, slot = keys * C * kLanes;
  const int64_t of_key = row * call.key_heads + head / (call.heads / call.key_heads);
  Columns<C> committed{call.states + of_head * keys * dim + column, dim};
  if (left < C * kLanes) {  // the last columns of a row that is not whole vectors
    for (int64_t i = 0; i < keys; i++)
      store(space + i * kLanes, some(committed.from + i * dim, left));
    committed = {space, kLanes};
    space += slot;
  }
  Pending<C> pending;
  for (const jspec::Step* step = steps; step < steps + count; step++) {
    const int64_t place = of_head * call.nodes + step->node;
    const float* q = call.queries + (of_key * call.nodes + step->node) * keys;
    const float* k = call.keys + (of_key * call.nodes + step->node) * keys;
    Vector read[C], held[C];
    // Behind a node with children comes a child of it.
    if (pending.to) {
      const jspec::Step& before = step[-1];
      Columns<C> state = committed;
      if (before.from >= 0) state = {space + before.from * slot, C * kLanes};
      read_state<Delta, C, true>(state, keys, q, k, pending, read, held);
    } else {
      Columns<C> state = committed;
      if (step->from >= 0) state = {space + step->from * slot, C * kLanes};
      read_state<Delta, C, false>(state, keys, q, k, pending, read, held);
    }
    pending.to = step->to < 0 ? nullptr : space + step->to * slot;
    pending.key = k, pending.factor = all(call.factors[place]);
    const Vector both = all(dot(q, k, keys));
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
      int64_t at = place * dim + column + c * kLanes, there = left - c * kLanes;
      Vector value = some(call.values + at, there);
      if (Delta)
        value = multiply(multiply_add(all(-call.factors[place]), held[c], value),
                         all(call.rates[place]));
      pending.values[c] = value;
      store_some(call.updates + at, value, there);
      store_some(call.mixed + at, multiply_add(both, value, multiply(pending.factor, read[c])), there);
    }
  }
}

template <int C>
void recur_by_rule(const jspec::Recurrence& call, int64_t row, int64_t head, int64_t column,
                   const jspec::Step* steps, int64_t count, float* space) {
  (call.delta ? recur_columns<true, C> : recur_columns<false, C>)(call, row, head, column, steps,
                                                                  count, space);
}

// The columns of `block`, of as many blocks as a head has.
void recur(const jspec::Recurrence& call, int64_t row, int64_t head, int64_t block,
           const jspec::Step* steps, int64_t count, float* space) {
  int64_t column = block * jspec::kColumns, end = column + jspec::kColumns;
  if (end > call.value_dim) end = call.value_dim;
  for (; column + kBeside * kLanes <= end; column += kBeside * kLanes)
    recur_by_rule<kBeside>(call, row, head, column, steps, count, space);
  for (; column < end; column += kLanes)
    recur_by_rule<1>(call, row, head, column, steps, count, space);
}

// C columns of the state behind steps that lie one behind the other.
template <int C>
void replay_columns(const jspec::Replay& call, int64_t of_head, const int32_t* path, int64_t count,
                    int64_t column) {
  const int64_t keys = call.key_dim, dim = call.value_dim, left = dim - column;
  for (int64_t first = 0; first < count; first += kTogether) {
    const int64_t steps = count - first < kTogether ? count - first : kTogether;
    const float *key[kTogether], *factor[kTogether];
    Vector values[kTogether][C];
    for (int64_t step = 0; step < steps; step++) {
      int64_t place = of_head * call.nodes + path[first + step];
      key[step] = call.keys + place * keys, factor[step] = call.factors + place;
#pragma GCC unroll 4
      for (int c = 0; c < C; c++)
        values[step][c] = some(call.updates + place * dim + column + c * kLanes, left - c * kLanes);
    }
    const float* from = first ? call.after : call.states;
    for (int64_t i = 0; i < keys; i++) {
      const int64_t at = (of_head * keys + i) * dim + column;
      Vector state[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) state[c] = some(from + at + c * kLanes, left - c * kLanes);
      for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++)
          state[c] = stepped(state[c], all(*factor[step]), all(key[step][i]), values[step][c]);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++)
        store_some(call.after + at + c * kLanes, state[c], left - c * kLanes);
    }
  }
}

// The state of one head behind the nodes of a path.
void replay(const jspec::Replay& call, int64_t row, int64_t head, const int32_t* path,
            int64_t count) {
  const int64_t of_head = row * call.heads + head;
  int64_t column = 0;
  for (; column + kBeside * kLanes <= call.value_dim; column += kBeside * kLanes)
    replay_columns<kBeside>(call, of_head, path, count, column);
  for (; column < call.value_dim; column += kLanes)
    replay_columns<1>(call, of_head, path, count, column);
}

// A node's sum over itself and the tokens before it, of each lane.
void convolve(const jspec::Convolution& call, const float* const* tokens, int64_t head,
              float* into) {
  const int64_t lanes = call.lanes, of_token = call.heads * lanes;
  for (int64_t lane = 0; lane < lanes; lane += kLanes) {
    const float* weights = call.kernel + call.before * of_token + head * lanes + lane;
    Vector total = multiply(some(tokens[0] + lane, lanes - lane), some(weights, lanes - lane));
    for (int64_t back = 1; back <= call.before; back++) {
      weights -= of_token;
      total = multiply_add(some(tokens[back] + lane, lanes - lane), some(weights, lanes - lane),
                           total);
    }
    store_some(into + lane, total, lanes - lane);
  }
}

}  // namespace
