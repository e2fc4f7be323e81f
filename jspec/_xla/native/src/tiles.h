// Products by AMX: a tile of 16 outputs' weights by a tile of up to 16 rows.
//
// Outputs are the rows of a tile and the rows of a call its columns, so that weights go into tiles as
// they lie in memory. Rows are prepared first: rounded to 8 bits, or split into pieces whose products are
// exact. With weights in bfloat16 a number is the sum of three in bfloat16. With weights of 8 bits or
// fewer, 32 numbers are three times 32 whole ones of 8 bits, which leaves 2^-24 of the largest: what
// float32 leaves of it too. A sum has one order, whatever the number of rows.
#pragma once

#include "integers.h"

namespace {

constexpr int kTile = 16;   // rows of a tile, and its columns of four bytes
constexpr int kPieces = 3;  // of a number that is split
constexpr float kFiner = 254;  // of a whole number, the next piece's parts

// Compilers do not know what tiles and their shapes are read from: it has to be in memory.
#define JSPEC_IN_MEMORY() __asm__ volatile("" ::: "memory")

struct __attribute__((packed)) Shapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 5 hold sums, [outputs, rows]; 6 weights, [outputs, depth in bytes]; and 7 the rows,
// [depth / 4, rows, 4 bytes].
JSPEC_INLINE void shape_tiles(int64_t outputs, int64_t rows, int64_t depth) {
  Shapes shapes;
  for (int tile = 0; tile < 8; tile++) {
    shapes.rows[tile] = uint8_t(tile == 7 ? depth / 4 : outputs);
    shapes.bytes[tile] = uint16_t(tile == 6 ? depth : 4 * rows);
  }
  JSPEC_IN_MEMORY();
  _tile_loadconfig(&shapes);
  JSPEC_IN_MEMORY();
}

JSPEC_INLINE void load_weights(const void* from, int64_t apart) { _tile_loadd(6, from, apart); }

JSPEC_INLINE Ints numbers_of_lanes() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// The outputs of a tile by W rows or fewer as vectors: output by output, of each one W lanes.
template <int W>
struct Spread {
  static constexpr int kOutputs = kLanes / W;  // of a vector
  // One number for each row, and one for each output of vector v.
  JSPEC_INLINE Vector by_row(Vector x) {
    return W == kLanes ? x : _mm512_permutexvar_ps(_mm512_and_si512(numbers_of_lanes(), all_ints(W - 1)), x);
  }
  JSPEC_INLINE Vector by_output(const float* from, int v) {
    if (W == kLanes) return all(from[v]);
    Ints outputs = plus(_mm512_srli_epi32(numbers_of_lanes(), kShift), all_ints(v * kOutputs));
    return _mm512_permutexvar_ps(outputs, load(from));
  }
  // Of each row the outputs go to y.
  JSPEC_INLINE void put(const RoundedProduct& call, const Pass& pass, int64_t output, int64_t outputs,
                        Vector (&found)[W]) {
    const __mmask16 used = __mmask16((1u << outputs) - 1);
    float* y = call.y + pass.first * call.outputs + output;
    if constexpr (W == kLanes) {
      transpose(found);
      for (int n = 0; n < kLanes; n++)
        if (n < pass.count) _mm512_mask_storeu_ps(y + n * call.outputs, used, found[n]);
    } else {
      alignas(64) float flat[kTile * W];
      for (int v = 0; v < W; v++) store(flat + v * kLanes, found[v]);
      for (int n = 0; n < pass.count; n++)
        _mm512_mask_storeu_ps(
            y + n * call.outputs, used,
            _mm512_i32gather_ps(_mm512_slli_epi32(numbers_of_lanes(), kShift), flat + n, 4));
    }
  }

 private:
  static constexpr int kShift = __builtin_ctz(W);
};

// What belongs to a block of 32 inputs of each row.
struct Rows {
  explicit Rows(const Pass& pass)
      : count(pass.count), used(__mmask16((1u << pass.count) - 1)), groups(pass.groups) {}
  Vector scale(int64_t block) const { return field(block, 2); }
  Vector sum(int64_t block) const { return field(block, 3); }

 private:
  int64_t count;
  __mmask16 used;
  const jspec::Rounded* groups;
  Vector field(int64_t block, int number) const {
    return _mm512_maskz_loadu_ps(used, (const float*)(groups + block * count) + number * count);
  }
};

// 32 weights of an output as bytes with signs, and the numbers in float16 before them.
struct TiledInt8 {
  static constexpr int kBytes = 32, kHalves = 0;
  static constexpr bool kAsTheyLie = true;
  JSPEC_INLINE void unpack(const uint8_t*, uint8_t*) {}
};
struct TiledQ8_0 : TiledInt8 {
  static constexpr int kBytes = 34, kHalves = 1;
};
template <int kOffset>
struct TiledQ4 {
  static constexpr int kBytes = kOffset ? 18 : 20, kHalves = kOffset ? 1 : 2;
  static constexpr bool kAsTheyLie = false;
  JSPEC_INLINE void unpack(const uint8_t* from, uint8_t* to) {
    const __m128i both = _mm_loadu_si128((const __m128i*)(from + 2 * kHalves));
    __m256i wide = _mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1);
    wide = _mm256_and_si256(wide, _mm256_set1_epi8(15));
    if (kOffset) wide = _mm256_sub_epi8(wide, _mm256_set1_epi8(kOffset));
    _mm256_storeu_si256((__m256i*)to, wide);
  }
};

// The weights of up to 16 outputs, as tiles of blocks, and the numbers of blocks, [number, output].
// What is laid out serves all passes.
struct Panel {
  int64_t output, outputs;
  uint8_t* laid;
  float* numbers;
};

template <class F>
JSPEC_INLINE void open_block(const uint8_t* from, int64_t apart, Ints places, int64_t outputs,
                             uint8_t* laid, float* numbers) {
  // The first four bytes of a block have its numbers.
  Ints both = F::kHalves ? _mm512_mask_i32gather_epi32(
                               all_ints(0), __mmask16((1u << outputs) - 1), places, from, 1)
                         : all_ints(0);
  for (int number = 0; number < F::kHalves; number++, both = _mm512_srli_epi32(both, 16))
    store(numbers + number * kTile, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both)));
#pragma GCC unroll 16
  for (int64_t i = 0; i < outputs; i++) F::unpack(from + i * apart, laid + i * kBlock);
}

// A pass over a panel in blocks of 32 inputs, each of which has a sum of its own.
template <class F, bool kSplit, int W>
void by_blocks(const RoundedProduct& call, const Pass& pass, const Panel& panel) {
  constexpr int kOf = kSplit ? kPieces : 1, kAtOnce = 6 / kOf;  // sums of a block; blocks
  const int64_t blocks = blocks_of(call), wide = 4 * pass.count;
  const int64_t row_bytes = F::kHalves ? blocks * F::kBytes : call.inputs;
  const int64_t rest = F::kHalves ? 0 : call.inputs % kBlock;
  const uint8_t* w = (const uint8_t*)call.weights + panel.output * row_bytes;
  const uint8_t* weights = F::kAsTheyLie ? w + 2 * F::kHalves : panel.laid;
  const int64_t apart = F::kAsTheyLie ? row_bytes : kBlock;
  const int64_t next = F::kAsTheyLie ? F::kBytes : kBlock * kTile;
  const char* states = (const char*)pass.states;
  const int64_t piece = kBlock * pass.count;
  // Each pass fetches its part of the next panel.
  const int64_t share = (F::kBytes * kTile + pass.of - 1) / pass.of;
  const uint8_t* later = w + row_bytes * kTile + pass.number * blocks * share;
  const Ints places = times(all_ints(int32_t(row_bytes)), numbers_of_lanes());
  const Rows rows(pass);
  // Blocks are laid out, then multiplied by tiles, then scaled and added: none waits for the last.
  alignas(64) int32_t sums[2][kAtOnce][kOf][kTile * W];
  alignas(64) uint8_t last[F::kHalves ? 1 : kTile][kBlock] = {};  // a block that is not whole
  Vector found[W];
#pragma GCC unroll 16
  for (int v = 0; v < W; v++) found[v] = zeros();

  auto open = [&](int64_t block) {
    if (pass.number && !rest) return;
    for (int64_t one = block; one < block + kAtOnce && one < blocks; one++) {
      float* numbers = panel.numbers + one * F::kHalves * kTile;
      uint8_t* laid = panel.laid + one * kBlock * kTile;
      const uint8_t* from = w + one * F::kBytes;
      if (rest && one == blocks - 1)
        for (int64_t i = 0; i < panel.outputs; i++) memcpy(last[i], from + i * row_bytes, rest);
      if (panel.outputs == kTile)
        open_block<F>(from, row_bytes, places, kTile, laid, numbers);
      else
        open_block<F>(from, row_bytes, places, panel.outputs, laid, numbers);
    }
    JSPEC_IN_MEMORY();
  };
  auto sum = [&](int64_t block, int32_t(&into)[kAtOnce][kOf][kTile * W]) {
    const uint8_t* from = weights + block * next;
    const char* x = states + block * kOf * piece;
#define JSPEC_SUM(tile)                                                        \
  if (block + tile / kOf < blocks) {                                           \
    const bool cut = rest && block + tile / kOf == blocks - 1;                 \
    if (tile % kOf == 0)                                                       \
      load_weights(cut ? last[0] : from + tile / kOf * next, cut ? kBlock : apart); \
    _tile_zero(tile);                                                          \
    _tile_loadd(7, x + tile * piece, wide);                                    \
    _tile_dpbssd(tile, 6, 7);                                                  \
    _tile_stored(tile, into[tile / kOf][tile % kOf], 4 * W);                   \
  }
    JSPEC_SUM(0) JSPEC_SUM(1) JSPEC_SUM(2) JSPEC_SUM(3) JSPEC_SUM(4) JSPEC_SUM(5)
#undef JSPEC_SUM
  };

  open(0), open(kAtOnce);
  sum(0, sums[0]);
  for (int64_t block = 0, turn = 0; block < blocks; block += kAtOnce, turn ^= 1) {
    open(block + 2 * kAtOnce);
    sum(block + kAtOnce, sums[turn ^ 1]);
    const int64_t some = blocks - block < kAtOnce ? blocks - block : kAtOnce;
    for (int64_t i = 0; i < some; i++) {
      for (int64_t line = 0; line < share; line += 64) __builtin_prefetch(later + line, 0, 3);
      later += share;
      const float* numbers = panel.numbers + (block + i) * F::kHalves * kTile;
      const Vector scale = Spread<W>::by_row(rows.scale(block + i));
      const Vector added = F::kHalves == 2 ? Spread<W>::by_row(rows.sum(block + i)) : zeros();
#pragma GCC unroll 16
      for (int v = 0; v < W; v++) {
        auto part = [&](int p) { return to_floats(load_ints(sums[turn][i][p] + v * kLanes)); };
        Vector sum = part(0);
        if constexpr (kSplit) {
          const Vector finer = all(1 / kFiner);
          sum = multiply_add(multiply_add(part(2), finer, part(1)), finer, sum);
        }
        const Vector factor = F::kHalves ? multiply(Spread<W>::by_output(numbers, v), scale) : scale;
        found[v] = add(found[v], multiply(sum, factor));
        if (F::kHalves == 2) {
          const Vector offset = Spread<W>::by_output(numbers + kTile, v);
          found[v] = add(found[v], multiply(offset, added));
        }
      }
    }
  }
  Spread<W>::put(call, pass, panel.output, panel.outputs, found);
}

// A pass over rows of weights without blocks, whose sums are added up in tiles, 64 bytes a step: in
// bfloat16 by rows that are split, or in 8 bits by rows that are rounded.
template <bool kSplit, int W>
void by_rows(const RoundedProduct& call, const Pass& pass, const Panel& panel) {
  constexpr int kOf = kSplit ? kPieces : 1;
  const int64_t row_bytes = call.inputs * (kSplit ? 2 : 1);
  const uint8_t* from = (const uint8_t*)call.weights + panel.output * row_bytes;
  const int64_t steps = row_bytes / 64, rest = row_bytes % 64, wide = 4 * pass.count;
  const int64_t piece = 64 * pass.count;
  const uint8_t* later = from + kTile * row_bytes;
  const char* x = (const char*)pass.states;
  int64_t apart = row_bytes;
  alignas(64) uint8_t padded[kTile][64] = {};
  alignas(64) int32_t sums[6][kTile * W];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  // Of every other step there are other sums, so that none waits for the last.
  auto step = [&](int64_t k) {
    if (pass.number == 0)
      for (int line = 0; line < kTile; line++) __builtin_prefetch(later + 64 * line, 0, 3);
    later += kTile * 64;
    if (k == steps) {
      for (int64_t i = 0; i < panel.outputs; i++) memcpy(padded[i], from + i * row_bytes, rest);
      from = padded[0], apart = 64;
      JSPEC_IN_MEMORY();
    }
#define JSPEC_PIECE(tile, p)                    \
  _tile_loadd(7, x + p * piece, wide);          \
  if constexpr (kSplit) {                       \
    _tile_dpbf16ps(tile, 6, 7);                 \
  } else {                                      \
    _tile_dpbssd(tile, 6, 7);                   \
  }
    _tile_loadd(6, from, apart);
    if (k % 2) {
      JSPEC_PIECE(1, 0)
      if constexpr (kSplit) {
        JSPEC_PIECE(3, 1)
        JSPEC_PIECE(5, 2)
      }
    } else {
      JSPEC_PIECE(0, 0)
      if constexpr (kSplit) {
        JSPEC_PIECE(2, 1)
        JSPEC_PIECE(4, 2)
      }
    }
#undef JSPEC_PIECE
    from += 64, x += kOf * piece;
  };
  for (int64_t k = 0; k < steps + (rest > 0); k++) step(k);
  _tile_stored(0, sums[0], 4 * W);
  _tile_stored(1, sums[1], 4 * W);
  _tile_stored(2, sums[2], 4 * W);
  _tile_stored(3, sums[3], 4 * W);
  _tile_stored(4, sums[4], 4 * W);
  _tile_stored(5, sums[5], 4 * W);
  alignas(64) float factors[kTile] = {};
  if (!kSplit) memcpy(factors, call.factors + panel.output, panel.outputs * sizeof(float));
  const Vector scale = kSplit ? all(1) : Spread<W>::by_row(Rows(pass).scale(0));
  Vector found[W];
#pragma GCC unroll 16
  for (int v = 0; v < W; v++) {
    if constexpr (kSplit) {  // the smallest first
      auto number = [&](int p) {
        return add(load((float*)sums[2 * p] + v * kLanes), load((float*)sums[2 * p + 1] + v * kLanes));
      };
      found[v] = add(add(number(2), number(1)), number(0));
    } else {
      Ints both = plus(load_ints(sums[0] + v * kLanes), load_ints(sums[1] + v * kLanes));
      found[v] = multiply(multiply(to_floats(both), scale), Spread<W>::by_output(factors, v));
    }
  }
  Spread<W>::put(call, pass, panel.output, panel.outputs, found);
}

template <bool kSplit, int W>
void run_pass(const RoundedProduct& call, const Pass& pass, const Panel& panel) {
  switch (call.kind) {
    case jspec::Kind::kQ8_0: return by_blocks<TiledQ8_0, kSplit, W>(call, pass, panel);
    case jspec::Kind::kQ4_0: return by_blocks<TiledQ4<8>, kSplit, W>(call, pass, panel);
    case jspec::Kind::kQ4_1: return by_blocks<TiledQ4<0>, kSplit, W>(call, pass, panel);
    default: break;
  }
  if constexpr (kSplit)
    if (call.kind == jspec::Kind::kInt8) return by_blocks<TiledInt8, kSplit, W>(call, pass, panel);
  by_rows<kSplit, W>(call, pass, panel);
}

template <bool kSplit, int W>
void by_panels(const RoundedProduct& call, int64_t first, int64_t last) {
  const int64_t passes = passes_of(call), blocks = blocks_of(call);
  const bool steps = call.kind == (kSplit ? jspec::Kind::kBfloat16 : jspec::Kind::kInt8);
  thread_local Space space;
  Panel panel;
  panel.laid = (uint8_t*)space.of(blocks * kTile * (kBlock + 2 * sizeof(float)));
  panel.numbers = (float*)(panel.laid + blocks * kTile * kBlock);
  for (panel.output = first; panel.output < last; panel.output += kTile) {
    const bool part = last - panel.output < kTile;
    panel.outputs = part ? last - panel.output : kTile;
    if (panel.output == first || part) shape_tiles(panel.outputs, W, steps ? 64 : 32);
    for (int64_t number = 0; number < passes; number++)
      run_pass<kSplit, W>(call, pass_of(call, number), panel);
  }
  _tile_release();
}

// Numbers as sums of three in bfloat16, of which each has the next eight of 24 bits: [block of 32
// inputs, piece, pair of inputs, row, 2]. What is infinite or no number has two pieces of zero.
JSPEC_INLINE void split_block(const RoundedProduct& call, const Pass& pass, int64_t n, int64_t block) {
  const int64_t k = block * kBlock;
  const float* x = call.x + (pass.first + n) * call.inputs;
  uint32_t* to = (uint32_t*)pass.states + n + block * kPieces * kBlock / 2 * pass.count;
  const Ints upper = all_ints(int32_t(0xffff0000));
  alignas(64) float some[kBlock] = {};
  memcpy(some, x + k, (call.inputs - k < kBlock ? call.inputs - k : kBlock) * sizeof(float));
  alignas(64) uint32_t pieces[kPieces][kBlock];
  for (int half = 0; half < kBlock; half += kLanes) {
    Vector left = load(some + half);
    // The bits that are cut off must not be all that say that it is no number.
    const __mmask16 none = _mm512_cmp_ps_mask(left, left, _CMP_UNORD_Q);
    left = _mm512_mask_mov_ps(left, none, all(NAN));
    const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(left), all(INFINITY), _CMP_LT_OQ);
    for (int p = 0; p < kPieces; p++) {
      const Ints cut = both(_mm512_castps_si512(left), upper);
      store_ints(pieces[p] + half, _mm512_srli_epi32(cut, 16));
      left = _mm512_maskz_sub_ps(finite, left, _mm512_castsi512_ps(cut));
    }
  }
  for (int p = 0; p < kPieces; p++)
    for (int pair = 0; pair < kBlock / 2; pair++, to += pass.count)
      *to = pieces[p][2 * pair] | pieces[p][2 * pair + 1] << 16;
}

// 32 numbers as 127ths of the largest, parts of these, and parts of those: [block, piece, four inputs,
// row, 4]. Where one is infinite or no number, all are of the size NaN.
JSPEC_INLINE void cut_block(const RoundedProduct& call, const Pass& pass, int64_t n, int64_t block) {
  const int64_t k = block * kBlock;
  const float* x = call.x + (pass.first + n) * call.inputs;
  int8_t* to = (int8_t*)pass.states + 4 * n + block * kPieces * kBlock * pass.count;
  alignas(64) float left[kBlock] = {};
  memcpy(left, x + k, (call.inputs - k < kBlock ? call.inputs - k : kBlock) * sizeof(float));
  jspec::Rounded group{};
  group.sum = sum(add(load(left), load(left + kLanes)));
  const uint32_t most = largest_bits(left, kBlock);
  float largest;
  memcpy(&largest, &most, 4);
  const bool good = most < 0x7f800000 && largest >= jspec::kLeast;
  group.scale = good ? largest * (1.0f / 127.0f) : most >= 0x7f800000 ? NAN : 0;
  keep(pass, block, n, group);
  float unit = group.scale, inverse = good ? 127.0f / largest : 0;
  for (int p = 0; p < kPieces; p++, unit *= 1 / kFiner, inverse *= kFiner) {
    alignas(64) int8_t whole[kBlock] = {};
    for (int half = 0; good && half < kBlock; half += kLanes) {
      const Vector number = load(left + half), found = ::whole(multiply(number, all(inverse)));
      store(left + half, multiply_add(found, all(-unit), number));
      _mm_store_si128((__m128i*)(whole + half), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(found)));
    }
    for (int step = 0; step < kSteps; step++, to += 4 * pass.count) memcpy(to, whole + 4 * step, 4);
  }
}

void split_part(const RoundedProduct& call, const Pass& pass, int64_t first, int64_t last) {
  const bool halves = call.kind == jspec::Kind::kBfloat16;
  for (int64_t n = 0; n < pass.count; n++)
    for (int64_t block = first; block < last; block++)
      halves ? split_block(call, pass, n, block) : cut_block(call, pass, n, block);
}

void prepare(const RoundedProduct& call, int64_t part) {
  prepare_with(call, part, call.split ? split_part : round_part);
}

// Lanes of tiles are as many as a power of two.
template <bool kSplit>
void by_width(const RoundedProduct& call, int64_t first, int64_t last) {
  const int64_t passes = passes_of(call), rows = (call.rows + passes - 1) / passes;
  if (rows <= 1) return by_panels<kSplit, 1>(call, first, last);
  if (rows <= 2) return by_panels<kSplit, 2>(call, first, last);
  if (rows <= 4) return by_panels<kSplit, 4>(call, first, last);
  if (rows <= 8) return by_panels<kSplit, 8>(call, first, last);
  by_panels<kSplit, 16>(call, first, last);
}

void any_rounded_product(const RoundedProduct& call, int64_t first, int64_t last) {
  call.split ? by_width<true>(call, first, last) : by_width<false>(call, first, last);
}

}  // namespace
