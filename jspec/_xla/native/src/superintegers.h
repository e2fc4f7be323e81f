// Products of rows that are rounded to 8 bits with weights in blocks of 256: see superblocks.h.
#pragma once

#include "integers.h"
#include "superblocks.h"

namespace {

// Row i becomes lane i of 16 vectors.
JSPEC_INLINE void turned(const float (&rows)[kLanes][16], float* to) {
  for (int first = 0; first < 16; first += kLanes) {
    Vector lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = load(rows[i] + first);
    transpose(lanes);
    for (int i = 0; i < kLanes; i++) store(to + (first + i) * kLanes, lanes[i]);
  }
}

// Blocks of 256 inputs. Of a panel's block, laid out some parts at a time, `kNumbers` vectors belong
// to the parts: `gather` has those of all outputs side by side.
struct LaidQ4_K {
  static constexpr int kBytes = Q4_K::kBytes, kTogether = 2, kNumbers = 16;
  JSPEC_INLINE void lay_out(const uint8_t* from, int part, int64_t apart, Ints* to) {
    const Ints low = all_ints(0x0f0f0f0f);
    for (int half = 0; half < 2; half++, to += 4) {
      Ints four[4];
      for (int i = 0; i < 4; i++)
        four[i] = fourths(from + 16 + 16 * part + 16 * half + i * apart, apart);
      turn(four);
      for (int i = 0; i < 4; i++) {
        store_ints(to + i, both(four[i], low));
        store_ints(to + kSteps + i, both(upper_half(four[i]), low));
      }
    }
  }
  JSPEC_INLINE void gather(const uint8_t* from, int64_t apart, float* to) {
    float rows[kLanes][16];
    for (int i = 0; i < kLanes; i++) {
      Q4_K::Head head = Q4_K::open((const char*)from + i * apart);
      memcpy(rows[i], &head, sizeof head);
    }
    turned(rows, to);
  }
  // Adds the products of a part's inputs with N rows.
  template <int N>
  JSPEC_INLINE void add_part(const Ints* laid, const State* x, const jspec::Rounded* groups,
                             const float* numbers, int part, Vector (&found)[N]) {
    Ints sums[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) sums[n] = all_ints(0);
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; step++) {
      Weights four = held(load_ints(laid + step));
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sums[n] = add_products(sums[n], four, x + (step * N + n) * 4);
    }
    Vector scale = load(numbers + part * kLanes), added = load(numbers + (8 + part) * kLanes);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      Vector product = multiply(to_floats(sums[n]), multiply(scale, all(groups[n].scale)));
      found[n] = add(add(found[n], product), multiply(added, all(groups[n].sum)));
    }
  }
};
struct LaidQ6_K {
  static constexpr int kBytes = Q6_K::kBytes, kTogether = 4, kNumbers = 17;
  JSPEC_INLINE void lay_out(const uint8_t* from, int part, int64_t apart, Ints* to) {
    const Ints low = all_ints(0x0f0f0f0f), high = all_ints(0x30303030);
    for (int half = 0; half < 2; half++, to += 4) {
      Ints fours[2][4], twos[4];
      for (int i = 0; i < 4; i++) {
        const uint8_t* at = from + 16 * half + i * apart;
        fours[0][i] = fourths(at + 16 * part, apart);
        fours[1][i] = fourths(at + 16 * part + 32, apart);
        twos[i] = fourths(at + 128 + 8 * part, apart);
      }
      turn(fours[0]), turn(fours[1]), turn(twos);
      for (int i = 0; i < 4; i++) {
        auto put = [&](int one, Ints four, Ints two) {
          store_ints(to + one * kSteps + i, either(both(four, low), both(two, high)));
        };
        put(0, fours[0][i], moved<4>(twos[i]));
        put(1, fours[1][i], moved<2>(twos[i]));
        put(2, upper_half(fours[0][i]), twos[i]);
        put(3, upper_half(fours[1][i]), moved<-2>(twos[i]));
      }
    }
  }
  JSPEC_INLINE void gather(const uint8_t* from, int64_t apart, float* to) {
    float rows[kLanes][16];
    for (int i = 0; i < kLanes; i++) {
      int32_t scales[16];
      for (int j = 0; j < 16; j++) scales[j] = (int8_t)from[i * apart + 192 + j];
      memcpy(rows[i], scales, sizeof scales);
      to[16 * kLanes + i] = from_half((const char*)from + i * apart + 208);
    }
    turned(rows, to);
  }
  template <int N>
  JSPEC_INLINE void add_part(const Ints* laid, const State* x, const jspec::Rounded* groups,
                             const float* numbers, int part, Vector (&found)[N]) {
    Ints sums[2][N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++)
      sums[0][n] = all_ints(groups[n].off - groups[n].upper), sums[1][n] = all_ints(groups[n].upper);
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; step++) {
      Weights four = held(load_ints(laid + step));
#pragma GCC unroll 8
      for (int n = 0; n < N; n++)
        sums[step / 4][n] = add_products(sums[step / 4][n], four, x + (step * N + n) * 4);
    }
    Ints lower = load_ints(numbers + 2 * part * kLanes);
    Ints upper = load_ints(numbers + (2 * part + 1) * kLanes);
    Vector scale = load(numbers + 16 * kLanes);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      Vector sum = to_floats(plus(times(sums[0][n], lower), times(sums[1][n], upper)));
      found[n] = add(found[n], multiply(sum, multiply(scale, all(groups[n].scale))));
    }
  }
};

// `tile`, of blocks of 256.
template <class F, int N, bool kFirst>
void tile_in_parts(const RoundedProduct& call, const Pass& pass, int64_t output, Ints* panel,
                   float* numbers, int64_t skipped) {
  const int64_t blocks = call.inputs / 256, apart = blocks * F::kBytes;
  const uint8_t* w = (const uint8_t*)call.weights + output * apart;
  Vector found[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) found[n] = zeros();
  for (int64_t block = 0; block < blocks; block++, w += F::kBytes, numbers += F::kNumbers * kLanes) {
    if (kFirst) {
      F::gather(w, apart, numbers);
      for (int i = 0; i < kLanes; i++)
        for (int line = 0; line < F::kBytes; line += 64)
          __builtin_prefetch(w + (kLanes + i) * apart + line, 0, 2);
    }
    for (int part = 0; part < 8; part++) {
      const int64_t number = block * 8 + part;
      Ints* laid = panel + number * kSteps;
      if (kFirst && part % F::kTogether == 0) F::lay_out(w, part, apart, laid);
      F::add_part(laid, pass.states + number * kBlock * N, pass.groups + number * N, numbers, part,
                  found);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) {
    float lanes[kLanes];
    store(lanes, found[n]);
    float* y = call.y + (pass.first + n) * call.outputs + output;
    memcpy(y + skipped, lanes + skipped, (kLanes - skipped) * sizeof(float));
  }
}

template <class F, int N = kRows>
void pass_in_parts(const RoundedProduct& call, int64_t number, int64_t output, Ints* panel,
                   float* numbers, int64_t skipped) {
  Pass pass = pass_of(call, number);
  if constexpr (N > 1)
    if (pass.count < N)
      return pass_in_parts<F, N - 1>(call, number, output, panel, numbers, skipped);
  auto run = number ? tile_in_parts<F, N, false> : tile_in_parts<F, N, true>;
  run(call, pass, output, panel, numbers, skipped);
}

template <class F>
void product_in_parts(const RoundedProduct& call, int64_t first, int64_t last) {
  const int64_t passes = passes_of(call), blocks = call.inputs / 256;
  thread_local Space space;
  float* laid = (float*)space.of(4 * blocks * kLanes * (8 * kSteps + F::kNumbers));
  for (int64_t output = first; output < last; output += kLanes) {
    int64_t at = output + kLanes <= call.outputs ? output : call.outputs - kLanes;
    for (int64_t number = 0; number < passes; number++)
      pass_in_parts<F>(call, number, at, (Ints*)laid, laid + blocks * kLanes * 8 * kSteps,
                       output - at);
  }
}

void any_rounded_product(const RoundedProduct& call, int64_t first, int64_t last) {
  switch (call.kind) {
    case jspec::Kind::kQ4_K: return product_in_parts<LaidQ4_K>(call, first, last);
    case jspec::Kind::kQ6_K: return product_in_parts<LaidQ6_K>(call, first, last);
    default: return rounded_product(call, first, last);
  }
}

void prepare(const RoundedProduct& call, int64_t part) { prepare_with(call, part, round_part); }

}  // namespace
