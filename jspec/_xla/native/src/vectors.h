// A vector of float32 lanes for each instruction set; which one, the compiler's flags say.
//
// Every file that includes this is compiled once for each set, so everything here is in an unnamed
// namespace: the linker must not take one set's code for another's.
#pragma once

#include <cstdint>
#include <cstdlib>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define JSPEC_INLINE static inline __attribute__((always_inline))

namespace {

#if defined(__AVX512F__)

using Vector = __m512;
constexpr int kLanes = 16;
constexpr int kRegisters = 32;

JSPEC_INLINE Vector zeros() { return _mm512_setzero_ps(); }
JSPEC_INLINE Vector all(float x) { return _mm512_set1_ps(x); }
JSPEC_INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
JSPEC_INLINE void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
JSPEC_INLINE Vector add(Vector x, Vector y) { return _mm512_add_ps(x, y); }
JSPEC_INLINE Vector multiply(Vector x, Vector y) { return _mm512_mul_ps(x, y); }
JSPEC_INLINE Vector multiply_add(Vector x, Vector y, Vector sum) {
  return _mm512_fmadd_ps(x, y, sum);
}
JSPEC_INLINE Vector load(const uint16_t* from) {  // bfloat16
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
JSPEC_INLINE Vector load(const int8_t* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
}
JSPEC_INLINE float sum(Vector x) { return _mm512_reduce_add_ps(x); }
// The larger number, and y where one is none.
JSPEC_INLINE Vector larger(Vector x, Vector y) { return _mm512_max_ps(x, y); }
JSPEC_INLINE float largest(Vector x) { return _mm512_reduce_max_ps(x); }
JSPEC_INLINE Vector whole(Vector x) { return _mm512_roundscale_ps(x, 0); }
// y, and 0 where x is below the limit.
JSPEC_INLINE Vector zero_below(Vector x, float limit, Vector y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, all(limit), _CMP_NLT_UQ), y);
}
// x * 2^power, the power a whole number from -126 to 127.
JSPEC_INLINE Vector scaled(Vector x, Vector power) { return _mm512_scalef_ps(x, power); }
// The lanes of two vectors in turn: of their lower halves, and of their upper ones.
JSPEC_INLINE Vector zip_low(Vector x, Vector y) {
  const __m512i at =
      _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm512_permutex2var_ps(x, at, y);
}
JSPEC_INLINE Vector zip_high(Vector x, Vector y) {
  const __m512i at =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return _mm512_permutex2var_ps(x, at, y);
}

#elif defined(__AVX2__)

using Vector = __m256;
constexpr int kLanes = 8;
constexpr int kRegisters = 16;

JSPEC_INLINE Vector zeros() { return _mm256_setzero_ps(); }
JSPEC_INLINE Vector all(float x) { return _mm256_set1_ps(x); }
JSPEC_INLINE Vector load(const float* from) { return _mm256_loadu_ps(from); }
JSPEC_INLINE void store(float* to, Vector x) { _mm256_storeu_ps(to, x); }
JSPEC_INLINE Vector add(Vector x, Vector y) { return _mm256_add_ps(x, y); }
JSPEC_INLINE Vector multiply(Vector x, Vector y) { return _mm256_mul_ps(x, y); }
JSPEC_INLINE Vector multiply_add(Vector x, Vector y, Vector sum) {
  return _mm256_fmadd_ps(x, y, sum);
}
JSPEC_INLINE Vector load(const uint16_t* from) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
JSPEC_INLINE Vector load(const int8_t* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
}
JSPEC_INLINE float sum(Vector x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
JSPEC_INLINE Vector larger(Vector x, Vector y) { return _mm256_max_ps(x, y); }
JSPEC_INLINE float largest(Vector x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
JSPEC_INLINE Vector whole(Vector x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
JSPEC_INLINE Vector zero_below(Vector x, float limit, Vector y) {
  return _mm256_and_ps(_mm256_cmp_ps(x, all(limit), _CMP_NLT_UQ), y);
}
JSPEC_INLINE Vector scaled(Vector x, Vector power) {
  __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23)));
}
JSPEC_INLINE Vector zip_low(Vector x, Vector y) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x20);
}
JSPEC_INLINE Vector zip_high(Vector x, Vector y) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x31);
}

#elif defined(__ARM_NEON)

using Vector = float32x4_t;
constexpr int kLanes = 4;
constexpr int kRegisters = 32;

JSPEC_INLINE Vector zeros() { return vdupq_n_f32(0); }
JSPEC_INLINE Vector all(float x) { return vdupq_n_f32(x); }
JSPEC_INLINE Vector load(const float* from) { return vld1q_f32(from); }
JSPEC_INLINE void store(float* to, Vector x) { vst1q_f32(to, x); }
JSPEC_INLINE Vector add(Vector x, Vector y) { return vaddq_f32(x, y); }
JSPEC_INLINE Vector multiply(Vector x, Vector y) { return vmulq_f32(x, y); }
JSPEC_INLINE Vector multiply_add(Vector x, Vector y, Vector sum) { return vfmaq_f32(sum, x, y); }
JSPEC_INLINE Vector load(const uint16_t* from) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
}
JSPEC_INLINE Vector load(const int8_t* from) {
  int32_t four;
  __builtin_memcpy(&four, from, 4);
  int16x8_t wide = vmovl_s8(vcreate_s8((uint32_t)four));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
JSPEC_INLINE float sum(Vector x) { return vaddvq_f32(x); }
JSPEC_INLINE Vector larger(Vector x, Vector y) { return vmaxq_f32(x, y); }
JSPEC_INLINE float largest(Vector x) { return vmaxvq_f32(x); }
JSPEC_INLINE Vector whole(Vector x) { return vrndnq_f32(x); }
JSPEC_INLINE Vector zero_below(Vector x, float limit, Vector y) {
  uint32x4_t below = vcltq_f32(x, all(limit));
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), below));
}
JSPEC_INLINE Vector scaled(Vector x, Vector power) {
  int32x4_t bits = vaddq_s32(vcvtnq_s32_f32(power), vdupq_n_s32(127));
  return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(bits, 23)));
}
JSPEC_INLINE Vector zip_low(Vector x, Vector y) { return vzip1q_f32(x, y); }
JSPEC_INLINE Vector zip_high(Vector x, Vector y) { return vzip2q_f32(x, y); }

#endif

JSPEC_INLINE Vector in_register(Vector x) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(x));
#elif defined(__AVX2__)
  __asm__("" : "+x"(x));
#else
  __asm__("" : "+w"(x));
#endif
  return x;
}

#if defined(__AVX2__)
JSPEC_INLINE float from_half(const char* from) {
  uint16_t bits;
  __builtin_memcpy(&bits, from, 2);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}
#elif defined(__ARM_NEON)
JSPEC_INLINE float from_half(const char* from) {
  __fp16 half;
  __builtin_memcpy(&half, from, 2);
  return half;
}
#endif

JSPEC_INLINE float widened(float x) { return x; }
JSPEC_INLINE float widened(int8_t x) { return x; }
JSPEC_INLINE float widened(uint16_t x) {  // bfloat16
  uint32_t bits = (uint32_t)x << 16;
  float wide;
  __builtin_memcpy(&wide, &bits, 4);
  return wide;
}

// The first `count` numbers, and zeros behind them.
template <class T>
JSPEC_INLINE Vector load_part(const T* from, int count) {
  alignas(64) float lanes[kLanes] = {};
  for (int i = 0; i < count; i++) lanes[i] = widened(from[i]);
  return load(lanes);
}

// exp(x) of numbers up to 0, within a unit or two of the last place, and 0 below -87; NaN stays.
JSPEC_INLINE Vector exponential(Vector given) {
  Vector x = larger(all(-87.0f), given);
  Vector power = whole(multiply(x, all(1.44269504f)));
  Vector rest = multiply_add(power, all(-0.693359375f), x);
  rest = multiply_add(power, all(2.12194440e-4f), rest);
  Vector y = all(1.9875691500e-4f);
  y = multiply_add(y, rest, all(1.3981999507e-3f));
  y = multiply_add(y, rest, all(8.3334519073e-3f));
  y = multiply_add(y, rest, all(4.1665795894e-2f));
  y = multiply_add(y, rest, all(1.6666665459e-1f));
  y = multiply_add(y, rest, all(5.0000001201e-1f));
  y = multiply_add(y, multiply(rest, rest), add(rest, all(1.0f)));
  return zero_below(given, -87.0f, scaled(y, power));
}

// Row i becomes lane i of all rows.
JSPEC_INLINE void transpose(Vector (&rows)[kLanes]) {
#pragma GCC unroll 8
  for (int stride = 1; stride < kLanes; stride *= 2) {
    Vector next[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes / 2; i++) {
      next[2 * i] = zip_low(rows[i], rows[i + kLanes / 2]);
      next[2 * i + 1] = zip_high(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) rows[i] = next[i];
  }
}

// A thread's memory, from the begin of a line of the cache on. It is no std::vector, whose functions
// the linker would take from the set that comes first.
struct Space {
  void* held = nullptr;
  size_t bytes = 0;
  ~Space() { free(held); }
  void* of(size_t needed) {
    if (bytes < needed) {
      free(held);
      bytes = (needed + 63) / 64 * 64;
      held = aligned_alloc(64, bytes);
    }
    return held;
  }
};

}  // namespace
