// Products of rows that are rounded to 8 bits with weights in 8 or 4 bits.
//
// Weights lie in memory output by output. The next outputs, as many as a vector has lanes, are laid
// out side by side as a panel, four inputs in a lane, and all rows are multiplied with it while it
// is in the cache. Sums of integers are exact in any order. What is in float32 is multiplied and
// added one by one, as XLA's operations do (jspec.models.blocks.rounded_product), so that a row's
// bits depend on no other row.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels.h"
#include "vectors.h"

namespace {

using jspec::RoundedProduct;

// Rows of 16 bytes, `apart` bytes from one another: row i of each four is one of the four vectors.
#if defined(__AVX512F__)

using Ints = __m512i;
JSPEC_INLINE Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
JSPEC_INLINE Ints load_ints(const void* from) { return _mm512_loadu_si512(from); }
JSPEC_INLINE void store_ints(void* to, Ints x) { _mm512_storeu_si512(to, x); }
JSPEC_INLINE Ints both(Ints x, Ints y) { return _mm512_and_si512(x, y); }
JSPEC_INLINE Ints either(Ints x, Ints y) { return _mm512_xor_si512(x, y); }
JSPEC_INLINE Ints upper_half(Ints x) { return _mm512_srli_epi16(x, 4); }
JSPEC_INLINE Ints times(Ints x, Ints y) { return _mm512_mullo_epi32(x, y); }
JSPEC_INLINE Ints plus(Ints x, Ints y) { return _mm512_add_epi32(x, y); }
// Bits of each byte, to the left by so many places; bits of other bytes may follow.
template <int by>
JSPEC_INLINE Ints moved(Ints x) {
  return by < 0 ? _mm512_srli_epi16(x, by < 0 ? -by : 0) : _mm512_slli_epi16(x, by < 0 ? 0 : by);
}
JSPEC_INLINE Vector to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
JSPEC_INLINE Vector from_halves(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
}
JSPEC_INLINE Ints fourths(const uint8_t* from, int64_t apart) {
  Ints found = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i*)from));
  found = _mm512_inserti32x4(found, _mm_loadu_si128((const __m128i*)(from + 4 * apart)), 1);
  found = _mm512_inserti32x4(found, _mm_loadu_si128((const __m128i*)(from + 8 * apart)), 2);
  return _mm512_inserti32x4(found, _mm_loadu_si128((const __m128i*)(from + 12 * apart)), 3);
}
JSPEC_INLINE void turn(Ints (&x)[4]) {
  Ints a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
  Ints c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi64(a, c), x[1] = _mm512_unpackhi_epi64(a, c);
  x[2] = _mm512_unpacklo_epi64(b, d), x[3] = _mm512_unpackhi_epi64(b, d);
}

#elif defined(__AVX2__)

using Ints = __m256i;
JSPEC_INLINE Ints all_ints(int32_t x) { return _mm256_set1_epi32(x); }
JSPEC_INLINE Ints load_ints(const void* from) { return _mm256_loadu_si256((const Ints*)from); }
JSPEC_INLINE void store_ints(void* to, Ints x) { _mm256_storeu_si256((Ints*)to, x); }
JSPEC_INLINE Ints both(Ints x, Ints y) { return _mm256_and_si256(x, y); }
JSPEC_INLINE Ints either(Ints x, Ints y) { return _mm256_xor_si256(x, y); }
JSPEC_INLINE Ints upper_half(Ints x) { return _mm256_srli_epi16(x, 4); }
JSPEC_INLINE Ints times(Ints x, Ints y) { return _mm256_mullo_epi32(x, y); }
JSPEC_INLINE Ints plus(Ints x, Ints y) { return _mm256_add_epi32(x, y); }
template <int by>
JSPEC_INLINE Ints moved(Ints x) {
  return by < 0 ? _mm256_srli_epi16(x, by < 0 ? -by : 0) : _mm256_slli_epi16(x, by < 0 ? 0 : by);
}
JSPEC_INLINE Vector to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
JSPEC_INLINE Vector from_halves(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
}
JSPEC_INLINE Ints fourths(const uint8_t* from, int64_t apart) {
  return _mm256_loadu2_m128i((const __m128i*)(from + 4 * apart), (const __m128i*)from);
}
JSPEC_INLINE void turn(Ints (&x)[4]) {
  Ints a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
  Ints c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm256_unpacklo_epi64(a, c), x[1] = _mm256_unpackhi_epi64(a, c);
  x[2] = _mm256_unpacklo_epi64(b, d), x[3] = _mm256_unpackhi_epi64(b, d);
}

#elif defined(__ARM_NEON)

using Ints = int32x4_t;
JSPEC_INLINE Ints all_ints(int32_t x) { return vdupq_n_s32(x); }
JSPEC_INLINE Ints load_ints(const void* from) { return vld1q_s32((const int32_t*)from); }
JSPEC_INLINE void store_ints(void* to, Ints x) { vst1q_s32((int32_t*)to, x); }
JSPEC_INLINE Ints both(Ints x, Ints y) { return vandq_s32(x, y); }
JSPEC_INLINE Ints either(Ints x, Ints y) { return veorq_s32(x, y); }
JSPEC_INLINE Ints upper_half(Ints x) {
  return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x), 4));
}
JSPEC_INLINE Ints times(Ints x, Ints y) { return vmulq_s32(x, y); }
JSPEC_INLINE Ints plus(Ints x, Ints y) { return vaddq_s32(x, y); }
template <int by>
JSPEC_INLINE Ints moved(Ints x) {
  return vreinterpretq_s32_u8(vshlq_u8(vreinterpretq_u8_s32(x), vdupq_n_s8(by)));
}
JSPEC_INLINE Vector to_floats(Ints x) { return vcvtq_f32_s32(x); }
JSPEC_INLINE Vector from_halves(const uint16_t* from) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
JSPEC_INLINE Ints fourths(const uint8_t* from, int64_t) {
  return vreinterpretq_s32_u8(vld1q_u8(from));
}
JSPEC_INLINE void turn(Ints (&x)[4]) {
  int32x4x2_t a = vtrnq_s32(x[0], x[1]), b = vtrnq_s32(x[2], x[3]);
  for (int i = 0; i < 2; i++) {
    x[i] = vcombine_s32(vget_low_s32(a.val[i]), vget_low_s32(b.val[i]));
    x[i + 2] = vcombine_s32(vget_high_s32(a.val[i]), vget_high_s32(b.val[i]));
  }
}

#endif

// How four inputs of a lane are multiplied, and what rows are held as. Bytes without a sign are
// multiplied with those that have one where weights are moved by kMoved, which comes off the sums.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

using State = int8_t;
using Weights = Ints;
#if defined(__AMX_INT8__)
constexpr int kMoved = 0, kOrder[] = {0, 1, 2, 3};  // tiles multiply bytes that have signs
#else
constexpr int kMoved = 128, kOrder[] = {0, 1, 2, 3};
#endif
JSPEC_INLINE Weights held(Ints w) { return w; }
JSPEC_INLINE Ints add_products(Ints sums, Weights w, const State* x) {
  int32_t four;
  memcpy(&four, x, 4);
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sums, w, all_ints(four));
#else
  return _mm256_dpbusd_avx_epi32(sums, w, all_ints(four));
#endif
}

#elif defined(__AVX2__)

// Products of 8 by 8 bits, two of which do not fit into 16: by pairs of every other byte.
using State = int16_t;
struct Weights {
  Ints even, odd;
};
constexpr int kMoved = 128, kOrder[] = {0, 2, 1, 3};
JSPEC_INLINE Ints add_pairs(Ints sums, Ints w, const State* x) {
  int32_t two;
  memcpy(&two, x, 4);
#if defined(__AVX512BW__)
  return _mm512_add_epi32(sums, _mm512_madd_epi16(w, all_ints(two)));
#else
  return _mm256_add_epi32(sums, _mm256_madd_epi16(w, all_ints(two)));
#endif
}
JSPEC_INLINE Weights held(Ints w) {
#if defined(__AVX512BW__)
  return {both(w, all_ints(0x00ff00ff)), _mm512_srli_epi16(w, 8)};
#else
  return {both(w, all_ints(0x00ff00ff)), _mm256_srli_epi16(w, 8)};
#endif
}
JSPEC_INLINE Ints add_products(Ints sums, Weights w, const State* x) {
  return add_pairs(add_pairs(sums, w.even, x), w.odd, x + 2);
}

#elif defined(__ARM_NEON)

using State = int8_t;
using Weights = int8x16_t;
constexpr int kMoved = 0, kOrder[] = {0, 1, 2, 3};
JSPEC_INLINE Weights held(Ints w) { return vreinterpretq_s8_s32(w); }
JSPEC_INLINE Ints add_products(Ints sums, Weights w, const State* x) {
  int32_t four;
  memcpy(&four, x, 4);
  int8x16_t row = vreinterpretq_s8_s32(all_ints(four));
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sums, w, row);
#else
  int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(row));
  int16x8_t high = vmull_s8(vget_high_s8(w), vget_high_s8(row));
  return vaddq_s32(sums, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

#endif

#if defined(__AMX_INT8__)
constexpr int kRows = 16;
#else
constexpr int kRows = kRegisters / 4;  // of a tile: sums in integers and in floats, and weights
#endif
constexpr int kBlock = 32, kSteps = kBlock / 4;
constexpr int kAhead = 2;  // blocks whose halves are gathered ahead of their use

// How weights lie in memory: blocks of 32 inputs, each with numbers in float16 before the weights.
// kOff is what a weight of zero is in the panel.
struct InEight {
  static constexpr int kOff = kMoved;
  JSPEC_INLINE void lay_out(const uint8_t* from, int64_t apart, Ints* to) {
    for (int half = 0; half < 2; half++) {
      Ints four[4];
      for (int i = 0; i < 4; i++) four[i] = fourths(from + i * apart + 16 * half, apart);
      turn(four);
      const Ints sign = all_ints(kMoved ? int32_t(0x80808080) : 0);
      for (int i = 0; i < 4; i++) store_ints(to + 4 * half + i, either(four[i], sign));
    }
  }
};
struct InFour {
  JSPEC_INLINE void lay_out(const uint8_t* from, int64_t apart, Ints* to) {
    Ints four[4];
    for (int i = 0; i < 4; i++) four[i] = fourths(from + i * apart, apart);
    turn(four);
    const Ints low = all_ints(0x0f0f0f0f);
    for (int i = 0; i < 4; i++) {
      store_ints(to + i, both(four[i], low));
      store_ints(to + 4 + i, both(upper_half(four[i]), low));
    }
  }
};
struct OneScale : InEight {  // and no blocks: a row has one sum
  static constexpr int kHalves = 0;
};
struct Q8_0 : InEight {
  static constexpr int kHalves = 1;
};
struct Q4_0 : InFour {
  static constexpr int kHalves = 1, kOff = 8;
};
struct Q4_1 : InFour {
  static constexpr int kHalves = 2, kOff = 0;
};

template <class F>
constexpr int kBytes = 2 * F::kHalves + (std::is_base_of_v<InEight, F> ? 32 : 16);

JSPEC_INLINE int64_t blocks_of(const RoundedProduct& call) {
  return (call.inputs + kBlock - 1) / kBlock;
}

// Rows that are multiplied together, as even in number as can be. Their states and what belongs to
// a group of them lie side by side.
struct Pass {
  int64_t first, count, number, of;
  State* states;         // [step, row, 4]
  jspec::Rounded* groups;  // [group, row]; for tiles each field of a group is [row]
};

int64_t state_bytes(const RoundedProduct& call) {
  const int64_t padded = blocks_of(call) * kBlock;
  if (call.split) return padded * (call.kind == jspec::Kind::kBfloat16 ? 6 : 3);
  return padded * sizeof(State);
}

JSPEC_INLINE int64_t passes_of(const RoundedProduct& call) { return (call.rows + kRows - 1) / kRows; }
JSPEC_INLINE Pass pass_of(const RoundedProduct& call, int64_t pass) {
  int64_t passes = passes_of(call);
  int64_t first = call.rows * pass / passes, end = call.rows * (pass + 1) / passes;
  void* states = (char*)call.states + first * state_bytes(call);
  return {first, end - first, pass, passes, (State*)states, call.groups + first * call.groups_of_row()};
}

// What belongs to a row's group goes to where the rows of its pass have it.
JSPEC_INLINE void keep(const Pass& pass, int64_t group, int64_t n, const jspec::Rounded& found) {
  jspec::Rounded* to = pass.groups + group * pass.count;
#if defined(__AMX_INT8__)
  int32_t fields[4];
  memcpy(fields, &found, sizeof fields);
  for (int i = 0; i < 4; i++) memcpy((int32_t*)to + i * pass.count + n, fields + i, 4);
#else
  to[n] = found;
#endif
}

// A block of as many outputs as there are lanes, laid out; of the last one the inputs that there are.
template <class F>
JSPEC_INLINE void lay_out(const RoundedProduct& call, const uint8_t* from, int64_t apart,
                          int64_t block, Ints* to) {
  int64_t rest = call.inputs - block * kBlock;
  if (F::kHalves || rest >= kBlock) return F::lay_out(from + 2 * F::kHalves, apart, to);
  uint8_t padded[kLanes * kBlock] = {};
  for (int i = 0; i < kLanes; i++) memcpy(padded + i * kBlock, from + i * apart, rest);
  F::lay_out(padded, kBlock, to);
}

// The numbers in float16 of one block of a panel, side by side.
template <class F>
JSPEC_INLINE void gather_halves(const uint8_t* from, int64_t apart, uint16_t* to) {
  for (int half = 0; half < F::kHalves; half++, to += kLanes)
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) memcpy(to + i, from + i * apart + 2 * half, 2);
}

// N rows by the outputs from `output` on; the first rows lay out the panel that the others read.
template <class F, int N, bool kFirst>
void tile(const RoundedProduct& call, const Pass& pass, int64_t output, Ints* panel,
          uint16_t* halves, int64_t skipped) {
  const int64_t blocks = blocks_of(call);
  const int64_t apart = F::kHalves ? blocks * kBytes<F> : call.inputs;
  const uint8_t* w = (const uint8_t*)call.weights + output * apart;
  const jspec::Rounded* groups = pass.groups;
  // Each pass over a panel fetches its part of the second next one.
  const int64_t share = (kBytes<F> * kLanes + pass.of - 1) / pass.of;
  const uint8_t* later = w + 2 * apart * kLanes + pass.number * blocks * share;
  Vector found[N];
  Ints sums[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) found[n] = zeros(), sums[n] = all_ints(groups[n].off);
  for (int64_t block = 0; block < blocks; block++) {
    Ints* laid = panel + block * kSteps;
    if (kFirst) {
      // Halves are stored one by one, and read as a vector when that has long been done.
      for (int64_t ahead = block ? block + kAhead : 0; ahead <= block + kAhead; ahead++)
        if (ahead < blocks)
          gather_halves<F>(w + ahead * kBytes<F>, apart, halves + ahead * F::kHalves * kLanes);
      lay_out<F>(call, w + block * kBytes<F>, apart, block, laid);
    }
    for (int64_t line = 0; line < share; line += 64) __builtin_prefetch(later + line, 0, 2);
    later += share;
    const State* x = pass.states + block * kBlock * N;
    if (F::kHalves) {
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sums[n] = all_ints(groups[n].off);
    }
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; step++) {
      Weights four = held(load_ints(laid + step));
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sums[n] = add_products(sums[n], four, x + (step * N + n) * 4);
    }
    if (F::kHalves) {
      Vector scale = from_halves(halves + block * F::kHalves * kLanes);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) {
        Vector product = multiply(to_floats(sums[n]), multiply(scale, all(groups[n].scale)));
        found[n] = add(found[n], product);
      }
      if (F::kHalves == 2) {
        Vector added = from_halves(halves + (2 * block + 1) * kLanes);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++)
          found[n] = add(found[n], multiply(added, all(groups[n].sum)));
      }
      groups += N;
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) {
    float* y = call.y + (pass.first + n) * call.outputs + output;
    if (!F::kHalves)
      found[n] = multiply(multiply(to_floats(sums[n]), all(groups[n].scale)),
                          load(call.factors + output));
    if (!skipped) {
      store(y, found[n]);
    } else {
      float lanes[kLanes];
      store(lanes, found[n]);
      memcpy(y + skipped, lanes + skipped, (kLanes - skipped) * sizeof(float));
    }
  }
}

template <class F>
void product_of(const RoundedProduct& call, int64_t first, int64_t last) {
  using Tile = void (*)(const RoundedProduct&, const Pass&, int64_t, Ints*, uint16_t*, int64_t);
  static constexpr Tile tiles[2][8] = {
      {tile<F, 1, false>, tile<F, 2, false>, tile<F, 3, false>, tile<F, 4, false>,
#if defined(__AVX512F__) || defined(__ARM_NEON)
       tile<F, 5, false>, tile<F, 6, false>, tile<F, 7, false>, tile<F, 8, false>
#endif
      },
      {tile<F, 1, true>, tile<F, 2, true>, tile<F, 3, true>, tile<F, 4, true>,
#if defined(__AVX512F__) || defined(__ARM_NEON)
       tile<F, 5, true>, tile<F, 6, true>, tile<F, 7, true>, tile<F, 8, true>
#endif
      }};
  const int64_t blocks = blocks_of(call), passes = passes_of(call);
  thread_local Space space;
  Ints* panel = (Ints*)space.of(blocks * (kSteps * sizeof(Ints) + 2 * F::kHalves * kLanes));
  uint16_t* halves = (uint16_t*)(panel + blocks * kSteps);
  for (int64_t output = first; output < last; output += kLanes) {
    // The last outputs have their own panel, with some that are known already.
    int64_t at = output + kLanes <= call.outputs ? output : call.outputs - kLanes;
    for (int64_t number = 0; number < passes; number++) {
      Pass pass = pass_of(call, number);
      tiles[!number][pass.count - 1](call, pass, at, panel, halves, output - at);
    }
  }
}

void rounded_product(const RoundedProduct& call, int64_t first, int64_t last) {
  switch (call.kind) {
    case jspec::Kind::kQ8_0: return product_of<Q8_0>(call, first, last);
    case jspec::Kind::kQ4_0: return product_of<Q4_0>(call, first, last);
    case jspec::Kind::kQ4_1: return product_of<Q4_1>(call, first, last);
    default: return product_of<OneScale>(call, first, last);
  }
}

// The bits of the largest magnitude, which are ordered as the magnitudes are, NaN behind infinity.
JSPEC_INLINE uint32_t largest_bits(const float* x, int64_t count) {
  uint32_t most = 0;
  int64_t k = 0;
#if defined(__AVX512F__)
  __m512i several = _mm512_setzero_si512();
  for (; k + kLanes <= count; k += kLanes)
    several = _mm512_max_epu32(several, both(load_ints(x + k), all_ints(0x7fffffff)));
  most = _mm512_reduce_max_epu32(several);
#endif
  for (; k < count; k++) {
    uint32_t bits;
    memcpy(&bits, x + k, 4);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return most;
}

// The whole numbers nearest to a block times `inverse`, in the order of rows; returns their sum.
JSPEC_INLINE int32_t nearest(const float* x, float inverse, State* to) {
#if defined(__AVX512VNNI__)
  __m512i low = _mm512_cvtps_epi32(multiply(load(x), all(inverse)));
  __m512i high = _mm512_cvtps_epi32(multiply(load(x + kLanes), all(inverse)));
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128((__m128i*)(to + kLanes), _mm512_cvtepi32_epi8(high));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
#else
  int32_t found[kBlock], sum = 0;
  for (int i = 0; i < kBlock; i++) found[i] = int32_t(std::rint(x[i] * inverse));
  for (int i = 0; i < kBlock; i++) sum += found[i];
  for (int i = 0; i < kBlock; i++) to[i] = State(found[i / 4 * 4 + kOrder[i % 4]]);
  return sum;
#endif
}

// Numbers of a row in 127ths of the largest, the nearest and of two the even one. Where one is no
// number, or infinite, the scale is NaN; where all are zeros it is 0.
JSPEC_INLINE jspec::Rounded round_group(const float* x, int64_t count, int64_t apart, int off,
                                        State* to) {
  const uint32_t most = largest_bits(x, count);
  float largest;
  memcpy(&largest, &most, 4);
  bool good = most < 0x7f800000 && largest >= jspec::kLeast;
  const float inverse = good ? 127.0f / largest : 0;
  int32_t sum = 0, upper = 0;
  for (int64_t k = 0; k < count; k += kBlock) {
    float some[kBlock] = {};
    State ordered[kBlock];
    const float* numbers = x + k;
    if (!good || count - k < kBlock) {
      if (good) memcpy(some, x + k, (count - k) * sizeof(float));
      numbers = some;
    }
    sum += nearest(numbers, inverse, ordered);
    for (int i = kBlock / 2; i < kBlock; i++) upper += ordered[i];
    for (int step = 0; step < kSteps; step++, to += 4 * apart)
      memcpy(to, ordered + 4 * step, 4 * sizeof(State));
  }
  jspec::Rounded group{-off * sum, -off * upper};
  group.scale = good ? largest * (1.0f / 127.0f) : most >= 0x7f800000 ? NAN : 0;
  group.sum = group.scale * float(sum);
  return group;
}

// Rows of a pass lie side by side, so that threads share them by blocks: a line of the cache belongs to
// all rows.
constexpr int64_t kPartBlocks = 6;
JSPEC_INLINE int64_t parts_of_pass(const RoundedProduct& call) {
  return (call.groups_of_row() + kPartBlocks - 1) / kPartBlocks;
}
int64_t parts(const RoundedProduct& call) {
  return passes_of(call) * parts_of_pass(call);
}

void round_part(const RoundedProduct& call, const Pass& pass, int64_t first, int64_t last) {
  int off = call.kind == jspec::Kind::kQ8_0   ? kMoved
            : call.kind == jspec::Kind::kQ4_0 ? 8
            : call.kind == jspec::Kind::kQ6_K ? 32
                                              : 0;
  for (int64_t n = 0; n < pass.count; n++) {
    const float* x = call.x + (pass.first + n) * call.inputs;
    State* to = pass.states + 4 * n;
    if (call.kind == jspec::Kind::kInt8) {
      keep(pass, 0, n, round_group(x, call.inputs, pass.count, kMoved, to));
      continue;
    }
    for (int64_t block = first; block < last; block++)
      keep(pass, block, n, round_group(x + block * kBlock, kBlock, pass.count, off,
                                       to + block * kBlock * pass.count));
  }
}

// Prepares the blocks of one part, of all rows of its pass.
template <class Prepare>
JSPEC_INLINE void prepare_with(const RoundedProduct& call, int64_t part, Prepare prepare) {
  const int64_t of = parts_of_pass(call), first = part % of * kPartBlocks, blocks = blocks_of(call);
  const int64_t last = of == 1 || first + kPartBlocks > blocks ? blocks : first + kPartBlocks;
  prepare(call, pass_of(call, part / of), first, last);
}

}  // namespace
