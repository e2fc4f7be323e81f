// What is computed for a call, and the table of one instruction set's functions.
#pragma once

#include <cstdint>

namespace jspec {

enum class Kind { kFloat32, kBfloat16, kInt8, kQ8_0, kQ4_0, kQ4_1, kQ4_K, kQ6_K };

// y[rows, outputs] = x[rows, inputs] by weights[outputs, inputs].
struct Product {
  Kind kind;
  const void* weights;
  const float* x;
  float* y;
  int64_t rows, inputs, outputs;
};

// One softmax of each query over the committed slots and its own nodes.
struct Attention {
  Kind kind;            // of slots; of int8, nodes are in float32
  const float* queries;  // [B, N, H * G, D], scaled
  const void* slot_keys;    // [B, H * L, S, D]
  const void* slot_values;
  const float* key_scales;  // [B, H * L, S], of slots in 8 bits
  const float* value_scales;
  const void* node_keys;    // [B, H, M + N, D]
  const void* node_values;
  const bool* mask;         // [B, N, M + N]: which nodes a query sees
  const int32_t* lengths;   // [B]: live slots
  const int32_t* oldest;    // [B, N]: the first slot that a query sees
  float* mixed;             // [B, N, H * G, D]
  int64_t batch, new_nodes, nodes, heads, group, dim, slots, layers, layer;
  float soft_cap;  // 0: none
};

constexpr int64_t kMostQueries = 64;

// The queries first .. last, of N * G, of one row's key-value head, at most kMostQueries.
struct Tile {
  int64_t row, head, first, last;
};

// The memory that a tile needs, for vectors of 16 lanes or fewer.
inline int64_t key_floats(const Attention& call) { return (call.dim + 16) / 16 * 16 * 64; }
inline int64_t tile_floats(const Attention& call, int64_t queries) {
  int64_t of_query = call.slots + call.nodes + 32 + 2 * (call.nodes + 16) + call.dim + 16;
  return key_floats(call) + queries * of_query;
}

// Numbers of a row that are rounded with one scale; what is added to their sums of integers, of it
// what belongs to the upper 16 of 32, and their own sum in float32.
struct Rounded {
  int32_t off, upper;
  float scale, sum;
};

// y[rows, outputs] = x[rows, inputs] by weights[outputs, inputs], whose rows are prepared first: they
// are rounded to 8 bits, 32 by 32 where the weights are in blocks, and else times the outputs' factors;
// or split, each number into three of bfloat16.
struct RoundedProduct {
  Kind kind;
  bool split;
  const void* weights;
  const float* factors;
  const float* x;
  float* y;
  int64_t rows, inputs, outputs;
  void* states;     // the prepared rows, `state_bytes` each
  Rounded* groups;  // of all rows: `groups_of_row` for each

  // A row has one scale where the weights have no blocks, and else one for each 32 inputs.
  int64_t groups_of_row() const { return kind == Kind::kInt8 && !split ? 1 : (inputs + 31) / 32; }
};

constexpr float kLeast = 1e-30f;  // groups of smaller numbers are zeros

struct Integers {
  int64_t (*state_bytes)(const RoundedProduct&);  // of a row
  // Rows are prepared in so many parts, before all products.
  int64_t (*parts)(const RoundedProduct&);
  void (*prepare)(const RoundedProduct&, int64_t part);
  // Outputs first .. last of all rows.
  void (*product)(const RoundedProduct&, int64_t first, int64_t last);
};

// A node of a tree, and which states it is made from and kept in: -1 for the committed one, and for
// none.
struct Step {
  int32_t node, from, to;
};

// Columns of a head that one thread goes through at once: its states stay in the first cache.
constexpr int64_t kColumns = 64;

// S' = f S + k u and o = S' q of each node, from its parent's state S.
struct Recurrence {
  const float* queries;  // [B, J, N, K]
  const float* keys;
  const float* values;   // [B, H, N, D]
  const float* factors;  // [B, H, N]
  const float* rates;    // of the delta rule
  const float* states;   // [B, H, K, D], behind the committed tokens
  float* mixed;          // [B, H, N, D], o
  float* updates;        // u
  int64_t heads, key_heads, nodes, key_dim, value_dim;
  bool delta;  // u = rate (v - f S k), else v
};

// For vectors of 16 lanes or fewer: so many states, and the columns of a committed one.
inline int64_t recurrence_floats(const Recurrence& call, int64_t slots) {
  return (slots + 1) * call.key_dim * kColumns;
}

// The states behind some nodes, one behind the other.
struct Replay {
  const float* states;   // [B, H, K, D]
  const float* keys;     // [B, H, N, K]
  const float* updates;  // [B, H, N, D]
  const float* factors;  // [B, H, N]
  float* after;          // [B, H, K, D], which may be `states`
  int64_t heads, nodes, key_dim, value_dim;
};

// Each lane's sum over a token and those before it.
struct Convolution {
  const float* kernel;  // [W + 1, J, C], that of the token itself last
  int64_t heads, lanes, before;
};

// The k largest entries of each row, falling, the first of equals first; and the logarithm of the
// sum of its exponentials.
struct Top {
  const float* x;  // [rows, size]
  float* values;   // [rows, k]
  int32_t* places;
  float* log_sums;  // [rows]
  int64_t size, k;
};

inline int64_t top_floats(const Top& call) { return 2 * call.k + call.size / 128 + 1; }

struct Kernels {
  // Outputs first .. last of all rows.
  void (*product)(const Product&, int64_t first, int64_t last);
  void (*attend)(const Attention&, const Tile&, float* space);
  // A block of a head's columns, for all steps of a row.
  void (*recur)(const Recurrence&, int64_t row, int64_t head, int64_t block, const Step*,
                int64_t steps, float* space);
  // One head, behind the nodes of a path.
  void (*replay)(const Replay&, int64_t row, int64_t head, const int32_t* path, int64_t count);
  // One node of a head; `tokens` are its inputs and those of the tokens before it.
  void (*convolve)(const Convolution&, const float* const* tokens, int64_t head, float* into);
  void (*top)(const Top&, int64_t row, float* space);
};

#if defined(__x86_64__)
extern const Kernels avx512, avx2;
extern const Integers integers_avx512, integers_avx2;
#elif defined(__aarch64__)
extern const Kernels neon;
extern const Integers integers_neon;
#endif
// Sets that not every compiler knows: see build.py.
#if defined(JSPEC_HAS_integers_avx512vnni)
extern const Integers integers_avx512vnni;
#endif
#if defined(JSPEC_HAS_integers_amx)
extern const Integers integers_amx;
#endif
#if defined(JSPEC_HAS_integers_avxvnni)
extern const Integers integers_avxvnni;
#endif
#if defined(JSPEC_HAS_integers_neondot)
extern const Integers integers_neondot;
#endif

}  // namespace jspec
