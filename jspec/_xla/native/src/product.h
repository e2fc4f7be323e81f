// Products of few rows with weights that are held by outputs.
//
// Each weight is read once, and multiplied with all rows while it is in a register. An output is
// summed over its inputs in one order, whatever the number of rows, so that the bits of a row do
// not depend on the others.
#pragma once

#include "blocks.h"
#include "kernels.h"
#include "superblocks.h"
#include "vectors.h"

namespace {

// The rows of a tile; it has `outputs_of` them outputs, and all sums stay in registers. Few rows wait
// for memory, and one stream of weights comes faster than several; what is widened takes longer.
constexpr int kMostRows = kRegisters == 32 ? 8 : 4;

// Bytes between the weights in use and those that are fetched, to the first cache and the second.
constexpr int64_t kNear = 512, kFar = 13824;
// Weights that stay in the second cache while all rows pass over them.
constexpr int64_t kBlock = 64 << 10;

struct Nothing {};

// How weights lie in memory: a step of `kStep` of them in `kBytes`, in `kParts` that are each widened
// to `kVectors` vectors. `open` reads what all parts share.
template <class W>
struct Plain {
  static constexpr bool kFetchesNear = true;
  static constexpr int kParts = 1;
  static constexpr int kVectors = sizeof(W) == 2 ? 2 : 1;
  static constexpr int kStep = kLanes * kVectors, kBytes = kStep * sizeof(W);
  static constexpr int outputs_of(int rows) {
    if (rows > kRegisters / 8) return kRegisters * 3 / 4 / rows;
    return sizeof(W) < 4 && rows > 1 ? kRegisters / 8 : 1;
  }
  JSPEC_INLINE int64_t bytes(int64_t inputs) { return inputs * sizeof(W); }
  JSPEC_INLINE Nothing open(const char*) { return {}; }
  JSPEC_INLINE void widen(const char* from, Nothing, int, Vector (&to)[kVectors]) {
    for (int v = 0; v < kVectors; v++) to[v] = load((const W*)from + v * kLanes);
  }
  JSPEC_INLINE Vector widen_part(const char* from, int count) {
    return load_part((const W*)from, count);
  }
};

// Blocks of 32 weights with a scale, as GGUF files have them: see blocks.h.
template <class Block>
struct InBlocks {
  static constexpr bool kFetchesNear = false;
  static constexpr int kParts = 1;
  static constexpr int kStep = 32, kBytes = Block::kBytes, kVectors = 32 / kLanes;
  static constexpr int outputs_of(int rows) { return rows <= 4 ? kRegisters / 8 : kRegisters / 2 / rows; }
  JSPEC_INLINE int64_t bytes(int64_t inputs) { return inputs / kStep * kBytes; }
  JSPEC_INLINE Nothing open(const char*) { return {}; }
  JSPEC_INLINE void widen(const char* from, Nothing, int, Vector (&to)[kVectors]) {
    Block::widen(from, to);
  }
  JSPEC_INLINE Vector widen_part(const char*, int) { return zeros(); }  // rows are of whole ones
};
// Blocks of 256 weights, of whose parts each has its own scale.
template <class Block>
struct InParts : InBlocks<Block> {
  static constexpr int kParts = 8, kStep = 256;
  JSPEC_INLINE int64_t bytes(int64_t inputs) { return inputs / kStep * Block::kBytes; }
  JSPEC_INLINE auto open(const char* from) { return Block::open(from); }
  JSPEC_INLINE void widen(const char* from, const typename Block::Head& head, int part,
                          Vector (&to)[32 / kLanes]) {
    Block::widen(from, head, part, to);
  }
};

// N rows by R outputs. Of P passes over the same weights each fetches its part of later ones.
template <class W, int R, int N, int P>
JSPEC_INLINE void tile(const char* w, const float* x, float* y, int64_t inputs, int64_t outputs,
                       int pass, int64_t far) {
  const int64_t row_bytes = W::bytes(inputs);
  Vector sums[R][N];
#pragma GCC unroll 32
  for (int r = 0; r < R; r++)
#pragma GCC unroll 32
    for (int n = 0; n < N; n++) sums[r][n] = zeros();
  int64_t k = 0;
  const char* at = w;
  for (; k + W::kStep <= inputs; k += W::kStep, at += W::kBytes) {
    decltype(W::open(at)) heads[R];
#pragma GCC unroll 32
    for (int r = 0; r < R; r++) heads[r] = W::open(at + r * row_bytes);
    for (int part = 0; part < W::kParts; part++) {
      Vector weights[R][W::kVectors];
#pragma GCC unroll 32
      for (int r = 0; r < R; r++) {
        const char* from = at + r * row_bytes;
        W::widen(from, heads[r], part, weights[r]);
        const char* next = from + part * (W::kBytes / W::kParts);
        if (W::kFetchesNear) __builtin_prefetch(next + kNear, 0, 3);
        if (P == 1 || r % P == pass) __builtin_prefetch(next + far, 0, 2);
      }
      const float* given = x + k + part * (W::kStep / W::kParts);
#pragma GCC unroll 8
      for (int v = 0; v < W::kVectors; v++)
#pragma GCC unroll 32
        for (int n = 0; n < N; n++) {
          // Without `in_register` it would be read for each output, which takes longer than to add.
          Vector row = in_register(load(given + n * inputs + v * kLanes));
#pragma GCC unroll 32
          for (int r = 0; r < R; r++) sums[r][n] = multiply_add(weights[r][v], row, sums[r][n]);
        }
    }
  }
  for (; k < inputs; k += kLanes, at += W::kBytes / W::kVectors) {
    int rest = inputs - k < kLanes ? int(inputs - k) : kLanes;
#pragma GCC unroll 32
    for (int r = 0; r < R; r++) {
      Vector weights = W::widen_part(at + r * row_bytes, rest);
#pragma GCC unroll 32
      for (int n = 0; n < N; n++)
        sums[r][n] = multiply_add(weights, load_part(x + n * inputs + k, rest), sums[r][n]);
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < R; r++)
#pragma GCC unroll 32
    for (int n = 0; n < N; n++) y[n * outputs + r] = sum(sums[r][n]);
}

// N rows, from `row` on, by the outputs first .. last.
template <class W, int N, int P>
void rows_of(const jspec::Product& call, int64_t row, int64_t first, int64_t last, int pass,
             int64_t far) {
  constexpr int R = W::outputs_of(N);
  const int64_t inputs = call.inputs, outputs = call.outputs, bytes = W::bytes(inputs);
  const float* x = call.x + row * inputs;
  float* y = call.y + row * outputs;
  const char* w = (const char*)call.weights;
  int64_t output = first;
  for (; output + R <= last; output += R)
    tile<W, R, N, P>(w + output * bytes, x, y + output, inputs, outputs, pass, far);
  for (; output < last; output++)
    tile<W, 1, N, 1>(w + output * bytes, x, y + output, inputs, outputs, 0, far);
}

template <class W, int P>
void rows_by_count(const jspec::Product& call, int64_t row, int64_t count, int64_t first,
                   int64_t last, int pass, int64_t far) {
  using Rows = void (*)(const jspec::Product&, int64_t, int64_t, int64_t, int, int64_t);
  static constexpr Rows by_count[] = {
      nullptr,
      rows_of<W, 1, P>,
      rows_of<W, 2, P>,
      rows_of<W, 3, P>,
      rows_of<W, 4, P>,
#if defined(__AVX512F__) || defined(__ARM_NEON)
      rows_of<W, 5, P>,
      rows_of<W, 6, P>,
      rows_of<W, 7, P>,
      rows_of<W, 8, P>,
#endif
  };
  by_count[count](call, row, first, last, pass, far);
}

template <class W>
void product_of(const jspec::Product& call, int64_t first, int64_t last) {
  if (call.rows <= kMostRows)
    return rows_by_count<W, 1>(call, 0, call.rows, first, last, 0, kFar);
  // Rows of a pass stay in the first cache.
  int64_t most = call.inputs > 1280 && kMostRows == 8 ? 6 : kMostRows;
  int64_t bytes = W::bytes(call.inputs), passes = (call.rows + most - 1) / most;
  int64_t block = kBlock / bytes / 12 * 12;
  if (block < 12) block = 12;
  auto rows = passes == 2 ? rows_by_count<W, 2> : rows_by_count<W, 3>;
  for (int64_t output = first; output < last; output += block) {
    int64_t end = output + block < last ? output + block : last;
    for (int64_t pass = 0, row = 0; pass < passes; pass++) {
      int64_t next = call.rows * (pass + 1) / passes;
      rows(call, row, next - row, output, end, int(pass % 3), block * bytes);
      row = next;
    }
  }
}

void product(const jspec::Product& call, int64_t first, int64_t last) {
  switch (call.kind) {
    case jspec::Kind::kFloat32: return product_of<Plain<float>>(call, first, last);
    case jspec::Kind::kBfloat16: return product_of<Plain<uint16_t>>(call, first, last);
    case jspec::Kind::kInt8: return product_of<Plain<int8_t>>(call, first, last);
    case jspec::Kind::kQ8_0: return product_of<InBlocks<Q8_0>>(call, first, last);
    case jspec::Kind::kQ4_0: return product_of<InBlocks<Q4<false>>>(call, first, last);
    case jspec::Kind::kQ4_1: return product_of<InBlocks<Q4<true>>>(call, first, last);
    case jspec::Kind::kQ4_K: return product_of<InParts<Q4_K>>(call, first, last);
    case jspec::Kind::kQ6_K: return product_of<InParts<Q6_K>>(call, first, last);
  }
}

}  // namespace
