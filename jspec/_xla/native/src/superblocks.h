// Blocks of 256 weights, whose parts have scales of 6 or 8 bits, as llama.cpp's GGUF files have them.
//
// A scale has 11 bits, times another at most 18, and a weight 4 or 6, so that their product is exact:
// the weights are those of the model in float32, and so are all sums.
#pragma once

#include "vectors.h"

namespace {

// Of 256 weights, 32 are a part. `Head` has what belongs to the whole block.
//
// Scale and offset, eight scales and offsets of 6 bits, and 32 bytes for each two parts: the lower
// halves of the first part.
struct Q4_K {
  static constexpr int kBytes = 144;
  struct Head {
    float scales[8], added[8];
  };
  JSPEC_INLINE Head open(const char* from) {
    uint32_t words[3], fours[4];
    __builtin_memcpy(words, from + 4, 12);
    fours[0] = words[0] & 0x3f3f3f3f;
    fours[1] = (words[2] & 0x0f0f0f0f) | (words[0] >> 6 & 0x03030303) << 4;
    fours[2] = words[1] & 0x3f3f3f3f;
    fours[3] = (words[2] >> 4 & 0x0f0f0f0f) | (words[1] >> 6 & 0x03030303) << 4;
    float wide[16];
    for (int v = 0; v < 16; v += kLanes) store(wide + v, load((const int8_t*)fours + v));
    float scale = from_half(from), offset = -from_half(from + 2);
    Head head;
    for (int i = 0; i < 8; i++) head.scales[i] = wide[i] * scale, head.added[i] = wide[i + 8] * offset;
    return head;
  }
  template <int V>
  JSPEC_INLINE void widen(const char* from, const Head& head, int part, Vector (&to)[V]) {
    const uint8_t* bytes = (const uint8_t*)from + 16 + part / 2 * 32;
    const int shift = part % 2 * 4;
    Vector scale = all(head.scales[part]), added = all(head.added[part]);
#if defined(__AVX512F__)
    const Vector steps = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    Vector known = multiply_add(steps, scale, added);
    for (int v = 0; v < V; v++) {
      __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(bytes + v * kLanes)));
      to[v] = _mm512_permutexvar_ps(_mm512_srl_epi32(both, _mm_cvtsi32_si128(shift)), known);
    }
#else
    int8_t steps[32];
    for (int i = 0; i < 32; i++) steps[i] = bytes[i] >> shift & 15;
    for (int v = 0; v < V; v++) to[v] = multiply_add(load(steps + v * kLanes), scale, added);
#endif
  }
};

// 128 bytes of lower halves and 64 of two upper bits, 16 scales of 8 bits, each of 16 weights, and
// their scale. Of each 128 weights byte i of 64 has those of weights i and i + 64, and byte i of 32
// the upper bits of weights i, i + 32, i + 64 and i + 96. 32 stands for zero.
struct Q6_K {
  static constexpr int kBytes = 210;
  struct Head {
    float scales[16];
  };
  JSPEC_INLINE Head open(const char* from) {
    Head head;
    const Vector scale = all(from_half(from + 208));
    for (int v = 0; v < 16; v += kLanes)
      store(head.scales + v, multiply(load((const int8_t*)from + 192 + v), scale));
    return head;
  }
  template <int V>
  JSPEC_INLINE void widen(const char* from, const Head& head, int part, Vector (&to)[V]) {
    const uint8_t* fours = (const uint8_t*)from + part / 4 * 64 + part % 2 * 32;
    const uint8_t* twos = (const uint8_t*)from + 128 + part / 4 * 32;
    const int shift = part / 2 % 2 * 4, shift_twos = part % 4 * 2;
#if defined(__AVX512F__)
    // A lookup of the lower bits and one of the upper, whose sum is exact.
    const Vector low = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const Vector high = _mm512_setr_ps(-32, -16, 0, 16, -32, -16, 0, 16, -32, -16, 0, 16, -32, -16, 0, 16);
    for (int v = 0; v < V; v++) {
      Vector scale = all(head.scales[part * 2 + v]);
      __m512i four = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(fours + v * kLanes)));
      __m512i two = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(twos + v * kLanes)));
      four = _mm512_srl_epi32(four, _mm_cvtsi32_si128(shift));
      two = _mm512_srl_epi32(two, _mm_cvtsi32_si128(shift_twos));
      to[v] = add(_mm512_permutexvar_ps(four, multiply(low, scale)),
                  _mm512_permutexvar_ps(two, multiply(high, scale)));
    }
#else
    int8_t steps[32];
    for (int i = 0; i < 32; i++)
      steps[i] = int8_t((fours[i] >> shift & 15) | (twos[i] >> shift_twos & 3) << 4) - 32;
    for (int v = 0; v < V; v++)
      to[v] = multiply(load(steps + v * kLanes), all(head.scales[part * 2 + v * kLanes / 16]));
#endif
  }
};

}  // namespace
