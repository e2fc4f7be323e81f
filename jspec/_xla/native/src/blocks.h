// Blocks of 32 weights with a scale in float16, as llama.cpp's GGUF files have them.
//
// A scale has 11 bits and a weight 4 or 8, so that their product is exact: the weights are those of
// the model in float32, and so are all sums.
#pragma once

#include "vectors.h"

namespace {

// The scale, then 32 numbers of 8 bits.
struct Q8_0 {
  static constexpr int kBytes = 34;
  template <int V>
  JSPEC_INLINE void widen(const char* from, Vector (&to)[V]) {
    Vector scale = all(from_half(from));
#pragma GCC unroll 8
    for (int v = 0; v < V; v++)
      to[v] = multiply(load((const int8_t*)from + 2 + v * kLanes), scale);
  }
};

// The scale, in Q4_1 what is added, and 16 bytes: weight i in the lower half of byte i, and weight
// i + 16 in the upper one. In Q4_0 8 stands for zero.
template <bool kAdds>
struct Q4 {
  static constexpr int kBytes = kAdds ? 20 : 18;
  template <int V>
  JSPEC_INLINE void widen(const char* from, Vector (&to)[V]) {
    Vector scale = all(from_half(from));
    const uint8_t* bytes = (const uint8_t*)from + (kAdds ? 4 : 2);
#if defined(__AVX512F__)
    // All 16 weights that there may be, and a lookup of each.
    const Vector steps = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    Vector known = kAdds ? multiply_add(steps, scale, all(from_half(from + 2)))
                         : multiply(add(steps, all(-8.0f)), scale);
    __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)bytes));
    to[0] = _mm512_permutexvar_ps(both, known);
    to[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), known);
#elif defined(__AVX2__)
    Vector added = kAdds ? all(from_half(from + 2)) : multiply(scale, all(-8.0f));
    for (int v = 0; v < 2; v++) {
      __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(bytes + 8 * v)));
      __m256i low = _mm256_and_si256(both, _mm256_set1_epi32(15)), high = _mm256_srli_epi32(both, 4);
      to[v] = multiply_add(_mm256_cvtepi32_ps(low), scale, added);
      to[v + 2] = multiply_add(_mm256_cvtepi32_ps(high), scale, added);
    }
#else
    float wide[32], added = kAdds ? from_half(from + 2) : -8 * from_half(from);
    for (int i = 0; i < 16; i++) {
      wide[i] = (bytes[i] & 15) * from_half(from) + added;
      wide[i + 16] = (bytes[i] >> 4) * from_half(from) + added;
    }
    for (int v = 0; v < V; v++) to[v] = load(wide + v * kLanes);
#endif
  }
};

}  // namespace
