// Products of rows that are rounded to 8 bits with weights in 8 bits.
//
// Sums of integers are exact, so that a row's bits depend on no order and on no other row; XLA's
// operations give the same ones.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define JSPEC_INLINE static inline __attribute__((always_inline))

namespace {

// An output's sums in lanes; how many weights are added in one step, and what a state is held as.
// Where bytes without a sign are multiplied with those that have one, weights are moved by 128, and
// 128 times a row's sum is taken off its sums. A part has `count` weights, and zeros behind them.
#if defined(__AVX512VNNI__)

using Sums = __m512i;
using State = int8_t;
constexpr int kStep = 64, kRows = 6, kMoved = 128;

JSPEC_INLINE Sums none() { return _mm512_setzero_si512(); }
JSPEC_INLINE Sums moved(Sums w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
JSPEC_INLINE Sums weights_at(const int8_t* from) { return moved(_mm512_loadu_si512(from)); }
JSPEC_INLINE Sums weights_part(const int8_t* from, int count) {
  return moved(_mm512_maskz_loadu_epi8(~0ull >> (64 - count), from));
}
JSPEC_INLINE Sums states_at(const State* from) { return _mm512_loadu_si512(from); }
JSPEC_INLINE Sums add_products(Sums sums, Sums w, Sums x) {
  return _mm512_dpbusd_epi32(sums, w, x);
}

#elif defined(__AVX512BW__)

using Sums = __m512i;
using State = int16_t;
constexpr int kStep = 32, kRows = 5, kMoved = 0;

JSPEC_INLINE Sums none() { return _mm512_setzero_si512(); }
JSPEC_INLINE Sums weights_at(const int8_t* from) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
}
JSPEC_INLINE Sums weights_part(const int8_t* from, int count) {
  return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(~0u >> (32 - count), from));
}
JSPEC_INLINE Sums states_at(const State* from) { return _mm512_loadu_si512(from); }
JSPEC_INLINE Sums add_products(Sums sums, Sums w, Sums x) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(w, x));
}

#elif defined(__AVXVNNI__)

using Sums = __m256i;
using State = int8_t;
constexpr int kStep = 32, kRows = 2, kMoved = 128;

JSPEC_INLINE Sums none() { return _mm256_setzero_si256(); }
JSPEC_INLINE Sums weights_at(const int8_t* from) {
  return _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)from), _mm256_set1_epi8(-128));
}
JSPEC_INLINE Sums states_at(const State* from) {
  return _mm256_loadu_si256((const __m256i*)from);
}
JSPEC_INLINE Sums add_products(Sums sums, Sums w, Sums x) {
  return _mm256_dpbusd_avx_epi32(sums, w, x);
}

#elif defined(__AVX2__)

using Sums = __m256i;
using State = int16_t;
constexpr int kStep = 16, kRows = 2, kMoved = 0;

JSPEC_INLINE Sums none() { return _mm256_setzero_si256(); }
JSPEC_INLINE Sums weights_at(const int8_t* from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
}
JSPEC_INLINE Sums states_at(const State* from) {
  return _mm256_loadu_si256((const __m256i*)from);
}
JSPEC_INLINE Sums add_products(Sums sums, Sums w, Sums x) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(w, x));
}

#elif defined(__ARM_NEON)

using Sums = int32x4_t;
using State = int8_t;
constexpr int kStep = 16, kRows = 4, kMoved = 0;

JSPEC_INLINE Sums none() { return vdupq_n_s32(0); }
JSPEC_INLINE int8x16_t weights_at(const int8_t* from) { return vld1q_s8(from); }
JSPEC_INLINE int8x16_t states_at(const State* from) { return vld1q_s8(from); }
JSPEC_INLINE Sums add_products(Sums sums, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sums, w, x);
#else  // two products of numbers up to 127 fit into 16 bits
  int16x8_t pairs = vmull_s8(vget_low_s8(w), vget_low_s8(x));
  return vpadalq_s16(sums, vmlal_s8(pairs, vget_high_s8(w), vget_high_s8(x)));
#endif
}

#endif

#if !defined(__AVX512BW__)
JSPEC_INLINE auto weights_part(const int8_t* from, int count) {
  int8_t held[kStep] = {};
  memcpy(held, from, count);
  return weights_at(held);
}
#endif

// The sums of four outputs, with what was moved taken off, in float32 and times their factors.
#if defined(__AVX2__)

JSPEC_INLINE __m128i whole(__m256i x) {
  return _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}
JSPEC_INLINE __m128i of_four(__m256i a, __m256i b, __m256i c, __m256i d) {
  return whole(_mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)));
}
#if defined(__AVX512BW__)
JSPEC_INLINE __m512i in_turn(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
JSPEC_INLINE __m128i of_four(__m512i a, __m512i b, __m512i c, __m512i d) {
  __m512i ab = in_turn(a, b), cd = in_turn(c, d);
  __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  return whole(_mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1)));
}
#endif
JSPEC_INLINE void finish(const Sums* sums, int32_t off, float scale, const float* factors,
                         float* to) {
  __m128i found = of_four(sums[0], sums[1], sums[2], sums[3]);
  __m128 wide = _mm_cvtepi32_ps(_mm_sub_epi32(found, _mm_set1_epi32(off)));
  wide = _mm_mul_ps(_mm_mul_ps(wide, _mm_set1_ps(scale)), _mm_loadu_ps(factors));
  _mm_storeu_ps(to, wide);
}

#elif defined(__ARM_NEON)

JSPEC_INLINE void finish(const Sums* sums, int32_t off, float scale, const float* factors,
                         float* to) {
  int32x4_t found = vpaddq_s32(vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3]));
  float32x4_t wide = vcvtq_f32_s32(vsubq_s32(found, vdupq_n_s32(off)));
  vst1q_f32(to, vmulq_f32(vmulq_f32(wide, vdupq_n_f32(scale)), vld1q_f32(factors)));
}

#endif

constexpr int kOutputs = 4;
constexpr int64_t kAhead = 8192;  // bytes between weights that are used and those that are fetched

int64_t padded(int64_t inputs) { return (inputs + kStep - 1) / kStep * kStep; }

int64_t state_bytes(int64_t inputs) { return padded(inputs) * sizeof(State); }

// R outputs, up to four, by N rows.
template <int R, int N>
JSPEC_INLINE void tile(const jspec::RoundedProduct& call, int64_t row, int64_t output) {
  const int64_t inputs = call.inputs, width = padded(inputs);
  const int8_t* w = call.weights + output * inputs;
  const State* x = (const State*)call.states + row * width;
  Sums sums[N][kOutputs];
#pragma GCC unroll 8
  for (int n = 0; n < N; n++)
#pragma GCC unroll 4
    for (int r = 0; r < kOutputs; r++) sums[n][r] = none();
  int64_t k = 0;
  for (; k + kStep <= inputs; k += kStep) {
    decltype(weights_at(w)) held[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      held[r] = weights_at(w + r * inputs + k);
      __builtin_prefetch(w + r * inputs + k + kAhead, 0, 2);
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      auto states = states_at(x + n * width + k);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) sums[n][r] = add_products(sums[n][r], held[r], states);
    }
  }
  if (int rest = int(inputs - k)) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      auto held = weights_part(w + r * inputs + k, rest);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++)
        sums[n][r] = add_products(sums[n][r], held, states_at(x + n * width + k));
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) {
    float* y = call.y + (row + n) * call.outputs + output;
    const float* factors = call.factors + output;
    int32_t off = call.offs[row + n];
    float scale = call.scales[row + n];
    if (R == kOutputs) {
      finish(sums[n], off, scale, factors, y);
    } else {
      float own[kOutputs] = {}, found[kOutputs];
      memcpy(own, factors, R * sizeof(float));
      finish(sums[n], off, scale, own, found);
      memcpy(y, found, R * sizeof(float));
    }
  }
}

template <int N>
void rows_of(const jspec::RoundedProduct& call, int64_t row, int64_t first, int64_t last) {
  int64_t output = first;
  for (; output + kOutputs <= last; output += kOutputs) tile<kOutputs, N>(call, row, output);
  for (; output < last; output++) tile<1, N>(call, row, output);
}

void rounded_product(const jspec::RoundedProduct& call, int64_t first, int64_t last) {
  using Rows = void (*)(const jspec::RoundedProduct&, int64_t, int64_t, int64_t);
  static constexpr Rows by_count[] = {
      nullptr,    rows_of<1>,
      rows_of<2>,
#if defined(__AVX512BW__) || defined(__ARM_NEON)
      rows_of<3>, rows_of<4>, rows_of<5>, rows_of<6>,
#endif
  };
  int64_t passes = (call.rows + kRows - 1) / kRows;
  for (int64_t pass = 0, row = 0; pass < passes; pass++) {
    int64_t next = call.rows * (pass + 1) / passes;
    by_count[next - row](call, row, first, last);
    row = next;
  }
}

// A row's numbers in 127ths of the largest, the nearest and of two the even one. A row with a
// number that is none, or infinite, has the scale NaN, and one of zeros has 0.
void round_row(const jspec::RoundedProduct& call, int64_t row) {
  const int64_t inputs = call.inputs, width = padded(inputs);
  const float* x = call.x + row * inputs;
  State* to = (State*)call.states + row * width;
  uint32_t most = 0;
  for (int64_t k = 0; k < inputs; k++) {
    uint32_t bits;
    memcpy(&bits, x + k, 4);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  float largest;
  memcpy(&largest, &most, 4);
  memset(to, 0, width * sizeof(State));
  call.offs[row] = 0;
  if (most >= 0x7f800000) {
    call.scales[row] = NAN;
    return;
  }
  if (largest < jspec::kLeast) {
    call.scales[row] = 0;
    return;
  }
  const float inverse = 127.0f / largest;
  int32_t sum = 0;
  for (int64_t k = 0; k < inputs; k++) {
    int32_t whole = int32_t(std::rint(x[k] * inverse));
    to[k] = State(whole);
    sum += whole;
  }
  call.offs[row] = kMoved * sum;
  call.scales[row] = largest * (1.0f / 127.0f);
}

}  // namespace
