// The kernels as targets of XLA's foreign function interface, over the threads of XLA's own pool.
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

#include "kernels.h"
#include "order.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;


namespace {

// Outputs of a part: a multiple of those of all tiles.
constexpr int64_t kOutputs = 72;
// The same in products of integers: some panels.
constexpr int64_t kPanels = 48;
// Fewer entries of a row are searched before another thread has begun.
constexpr int64_t kEntries = 16 << 10;
// Rows that are prepared together: the second cache has room for them.
constexpr int64_t kChunk = 256;

using jspec::Attention;
using jspec::Convolution;
using jspec::Kernels;
using jspec::Integers;
using jspec::Kind;
using jspec::Product;
using jspec::Recurrence;
using jspec::Replay;
using jspec::RoundedProduct;
using jspec::Tile;


const Kernels* chosen = nullptr;
const Integers* integers = nullptr;
const Integers* tiles = nullptr;

bool in_tiles(Kind kind) {
  return tiles && kind != Kind::kFloat32 && kind != Kind::kQ4_K && kind != Kind::kQ6_K;
}

void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Parts of a stage. Each thread has some that lie side by side, takes them one by one, and then what
// others have not begun. So a thread that the pool starts late is waited for by nobody.
struct Shared {
  Shared(int64_t parts, int64_t threads) : parts(parts), next(threads) {
    for (int64_t thread = 0; thread < threads; thread++) next[thread] = parts * thread / threads;
  }
  int64_t parts;
  std::vector<std::atomic<int64_t>> next;
  std::atomic<int64_t> done{0};
};

// Runs so many parts of each stage, one stage behind the other.
template <class Run>
void in_stages(ffi::ThreadPool& pool, const std::vector<int64_t>& stages, int64_t threads,
               const Run& run) {
  if (threads <= 1) {
    for (size_t stage = 0; stage < stages.size(); stage++)
      for (int64_t part = 0; part < stages[stage]; part++) run(stage, part);
    return;
  }
  auto shared = std::make_shared<std::deque<Shared>>();
  for (int64_t parts : stages) shared->emplace_back(parts, threads);
  // `run` is only touched by who has a part, and the call waits for all parts.
  auto work = [shared, threads, run = &run](int64_t own) {
    for (size_t number = 0; number < shared->size(); number++) {
      Shared& stage = (*shared)[number];
      for (int64_t i = 0; i < threads; i++) {
        int64_t of = (own + i) % threads, end = stage.parts * (of + 1) / threads;
        for (int64_t part; (part = stage.next[of].fetch_add(1, std::memory_order_relaxed)) < end;) {
          (*run)(number, part);
          stage.done.fetch_add(1, std::memory_order_release);
        }
      }
      if (own && number + 1 == shared->size()) return;
      for (int spins = 0; stage.done.load(std::memory_order_acquire) < stage.parts; spins++)
        spins < 4096 ? rest() : std::this_thread::yield();
    }
  };
  for (int64_t thread = 1; thread < threads; thread++)
    pool.Schedule([work, thread] { work(thread); });
  work(0);
}

template <class Run>
void in_parts(ffi::ThreadPool& pool, int64_t parts, int64_t threads, const Run& run) {
  in_stages(pool, {parts}, parts < threads ? parts : threads, [&](size_t, int64_t part) { run(part); });
}

int64_t threads_of(ffi::ThreadPool& pool, int64_t parts) {
  int64_t threads = pool.num_threads();
  return threads < parts ? threads : parts;
}

template <class Buffer>
Kind kind_of(const Buffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::BF16:
    case ffi::U16: return Kind::kBfloat16;  // the bits of one
    case ffi::S8: return Kind::kInt8;
    default: return Kind::kFloat32;
  }
}

Kind kind_of(int32_t block_bytes) {
  switch (block_bytes) {
    case 34: return Kind::kQ8_0;
    case 18: return Kind::kQ4_0;
    case 144: return Kind::kQ4_K;
    case 210: return Kind::kQ6_K;
    default: return Kind::kQ4_1;
  }
}

int64_t inputs_of(int64_t row_bytes, int32_t block_bytes) {
  return row_bytes / block_bytes * (block_bytes < 144 ? 32 : 256);
}

int64_t bytes_of(Kind kind) {
  return kind == Kind::kFloat32 ? 4 : kind == Kind::kBfloat16 ? 2 : 1;
}

// Which of the matrices is multiplied, where there are several.
int64_t matrix_of(ffi::Span<const int64_t> shape, ffi::Buffer<ffi::S32> layer) {
  if (shape.size() < 3) return 0;
  int64_t number = layer.typed_data()[0], last = shape[0] - 1;
  return number < 0 ? 0 : number > last ? last : number;
}

// A thread's own memory, which begins with a line of the cache.
float* scratch(int64_t floats) {
  thread_local std::vector<float> held;
  if (int64_t(held.size()) < floats + 16) held.resize(floats + 16);
  return (float*)(((uintptr_t)held.data() + 63) & ~uintptr_t(63));
}

// The rows of a call, some at a time: each is prepared, then all are multiplied.
ffi::Error prepared(ffi::ThreadPool& pool, const RoundedProduct& whole) {
  const Integers& by = in_tiles(whole.kind) ? *tiles : *integers;
  const int64_t bytes = by.state_bytes(whole), groups = whole.groups_of_row();
  for (int64_t row = 0; row < whole.rows; row += kChunk) {
    RoundedProduct call = whole;
    call.rows = whole.rows - row < kChunk ? whole.rows - row : kChunk;
    call.x += row * call.inputs, call.y += row * call.outputs;
    // Tiles read on behind the last state.
    int64_t floats = call.rows * (groups * sizeof(jspec::Rounded) + bytes) / 4 + 512;
    call.groups = (jspec::Rounded*)scratch(floats);
    call.states = call.groups + call.rows * groups;
    int64_t work = call.outputs * call.inputs * call.rows;
    int64_t size = work < (256 << 10) ? call.outputs : kPanels;
    int64_t parts = (call.outputs + size - 1) / size;
    int64_t threads = parts <= 1 ? 1 : threads_of(pool, parts);
    in_stages(pool, {by.parts(call), parts}, threads, [&](size_t stage, int64_t part) {
      if (!stage) return by.prepare(call, part);
      int64_t end = (part + 1) * size;
      by.product(call, part * size, end < call.outputs ? end : call.outputs);
    });
  }
  return ffi::Error::Success();
}

// With weights that tiles take, each number of a row is split.
ffi::Error multiply(ffi::ThreadPool& pool, const Product& call, int64_t bytes) {
  if (in_tiles(call.kind))
    return prepared(pool, {call.kind, true, call.weights, nullptr, call.x, call.y, call.rows,
                           call.inputs, call.outputs});
  // Small products end before another thread has begun.
  int64_t size = bytes * call.rows < (64 << 10) ? call.outputs : kOutputs;
  int64_t parts = (call.outputs + size - 1) / size;
  in_parts(pool, parts, threads_of(pool, parts), [&](int64_t part) {
    int64_t end = (part + 1) * size;
    chosen->product(call, part * size, end < call.outputs ? end : call.outputs);
  });
  return ffi::Error::Success();
}

ffi::Error block_product(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::U8> weights,
                         ffi::Buffer<ffi::S32> layer, int32_t block_bytes,
                         ffi::ResultBuffer<ffi::F32> y) {
  auto shape = weights.dimensions();
  size_t rank = shape.size();
  Product call{kind_of(block_bytes), nullptr, x.typed_data(), y->typed_data(), 0,
               inputs_of(shape[rank - 1], block_bytes), shape[rank - 2]};
  call.rows = int64_t(x.element_count()) / call.inputs;
  int64_t bytes = call.outputs * shape[rank - 1];
  call.weights = weights.typed_data() + bytes * matrix_of(shape, layer);
  return multiply(pool, call, bytes);
}

ffi::Error rounded_product(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer weights,
                           ffi::Buffer<ffi::F32> factors, ffi::Buffer<ffi::S32> layer,
                           int32_t block_bytes, ffi::ResultBuffer<ffi::F32> y) {
  auto shape = weights.dimensions();
  int64_t row_bytes = shape[shape.size() - 1], matrix = matrix_of(shape, layer);
  RoundedProduct call{};
  call.kind = block_bytes ? kind_of(block_bytes) : Kind::kInt8;
  call.inputs = block_bytes ? inputs_of(row_bytes, block_bytes) : row_bytes;
  call.outputs = shape[shape.size() - 2];
  call.weights = (const char*)weights.untyped_data() + matrix * call.outputs * row_bytes;
  call.factors = block_bytes ? nullptr : factors.typed_data() + matrix * call.outputs;
  call.x = x.typed_data(), call.y = y->typed_data();
  call.rows = int64_t(x.element_count()) / call.inputs;
  return prepared(pool, call);
}

ffi::Error product(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer weights,
                   ffi::Buffer<ffi::S32> layer, ffi::ResultBuffer<ffi::F32> y) {
  auto shape = weights.dimensions();
  size_t rank = shape.size();
  Product call{kind_of(weights), weights.untyped_data(), x.typed_data(), y->typed_data(), 0,
               shape[rank - 1], shape[rank - 2]};
  call.rows = int64_t(x.element_count()) / call.inputs;
  int64_t bytes = call.outputs * call.inputs * bytes_of(call.kind);
  call.weights = (const char*)call.weights + bytes * matrix_of(shape, layer);
  return multiply(pool, call, bytes);
}

ffi::Error attend(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> queries, ffi::AnyBuffer node_keys,
                  ffi::AnyBuffer node_values, ffi::Buffer<ffi::PRED> mask,
                  ffi::AnyBuffer slot_keys, ffi::AnyBuffer slot_values,
                  ffi::Buffer<ffi::F32> key_scales, ffi::Buffer<ffi::F32> value_scales,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::S32> oldest,
                  ffi::Buffer<ffi::S32> layer, float soft_cap, ffi::ResultBuffer<ffi::F32> mixed) {
  auto q = queries.dimensions(), nodes = node_keys.dimensions(), slots = slot_keys.dimensions();
  Attention call{};
  call.kind = kind_of(slot_keys);
  call.queries = queries.typed_data();
  call.slot_keys = slot_keys.untyped_data();
  call.slot_values = slot_values.untyped_data();
  call.key_scales = key_scales.typed_data();
  call.value_scales = value_scales.typed_data();
  call.node_keys = node_keys.untyped_data();
  call.node_values = node_values.untyped_data();
  call.mask = mask.typed_data();
  call.lengths = lengths.typed_data();
  call.oldest = oldest.typed_data();
  call.mixed = mixed->typed_data();
  call.batch = q[0], call.new_nodes = q[1], call.dim = q[3];
  call.heads = nodes[1], call.group = q[2] / nodes[1], call.nodes = nodes[2];
  call.slots = slots[2], call.layers = slots[1] / nodes[1];
  call.layer = layer.typed_data()[0];
  call.soft_cap = soft_cap;

  int64_t all = call.new_nodes * call.group, heads = call.batch * call.heads;
  if (!all || !heads) return ffi::Error::Success();
  int64_t live = 0;
  for (int64_t row = 0; row < call.batch; row++) live += call.lengths[row] + call.nodes;
  int64_t threads = live * call.heads * all * call.dim < (1 << 15) ? 1 : pool.num_threads();
  // Queries of a head share its keys. There are so many tiles that each thread has one; and as many
  // as others, or nearly, unless tiles have few queries.
  int64_t tiles = (all + jspec::kMostQueries - 1) / jspec::kMostQueries;
  auto uneven = [&] {
    int64_t count = heads * tiles;
    return count < threads || (count % threads && count < 4 * threads && tiles < all / 6);
  };
  while (tiles < all && uneven()) tiles++;
  int64_t floats = tile_floats(call, (all + tiles - 1) / tiles);
  in_parts(pool, heads * tiles, threads, [&](int64_t number) {
    int64_t head = number / tiles, part = number % tiles;
    Tile tile{head / call.heads, head % call.heads, all * part / tiles, all * (part + 1) / tiles};
    chosen->attend(call, tile, scratch(floats));
  });
  return ffi::Error::Success();
}

ffi::Error top(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> values,
               ffi::ResultBuffer<ffi::S32> places, ffi::ResultBuffer<ffi::F32> log_sums) {
  auto shape = x.dimensions(), kept = values->dimensions();
  jspec::Top call{x.typed_data(), values->typed_data(), places->typed_data(), log_sums->typed_data(),
                  shape[shape.size() - 1], kept[kept.size() - 1]};
  int64_t rows = int64_t(x.element_count()) / call.size;
  in_parts(pool, rows, call.size < kEntries ? 1 : pool.num_threads(), [&](int64_t row) {
    chosen->top(call, row, scratch(top_floats(call)));
  });
  return ffi::Error::Success();
}

// The orders of all rows of a mask [B, N, N].
std::vector<jspec::Order> orders_of(ffi::Buffer<ffi::PRED> seen) {
  auto shape = seen.dimensions();
  std::vector<jspec::Order> found;
  for (int64_t row = 0; row < shape[0]; row++)
    found.emplace_back(seen.typed_data() + row * shape[1] * shape[1], shape[1]);
  return found;
}

ffi::Error recur(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> queries, ffi::Buffer<ffi::F32> keys,
                 ffi::Buffer<ffi::F32> values, ffi::Buffer<ffi::F32> factors,
                 ffi::Buffer<ffi::F32> rates, ffi::Buffer<ffi::F32> states,
                 ffi::Buffer<ffi::PRED> seen, int32_t delta, ffi::ResultBuffer<ffi::F32> mixed,
                 ffi::ResultBuffer<ffi::F32> updates) {
  auto q = queries.dimensions(), v = values.dimensions();
  Recurrence call{queries.typed_data(), keys.typed_data(), values.typed_data(),
                  factors.typed_data(), rates.typed_data(), states.typed_data(),
                  mixed->typed_data(), updates->typed_data(), v[1], q[1], q[2], q[3], v[3],
                  delta != 0};
  std::vector<jspec::Order> orders = orders_of(seen);
  int64_t slots = 0, blocks = (call.value_dim + jspec::kColumns - 1) / jspec::kColumns;
  for (const jspec::Order& order : orders) {
    slots = order.slots > slots ? order.slots : slots;
    if (int64_t(order.steps.size()) == call.nodes) continue;
    // Tokens that are not there, in rows of a batch that have fewer.
    int64_t floats = call.heads * call.nodes * call.value_dim, row = &order - orders.data();
    memset(call.mixed + row * floats, 0, floats * sizeof(float));
    memset(call.updates + row * floats, 0, floats * sizeof(float));
  }
  int64_t heads = int64_t(orders.size()) * call.heads, parts = heads * blocks;
  int64_t work = heads * call.nodes * call.key_dim * call.value_dim;
  in_parts(pool, parts, work < (1 << 16) ? 1 : threads_of(pool, parts), [&](int64_t part) {
    int64_t head = part / blocks, row = head / call.heads;
    const std::vector<jspec::Step>& steps = orders[row].steps;
    chosen->recur(call, row, head % call.heads, part % blocks, steps.data(), int64_t(steps.size()),
                  scratch(recurrence_floats(call, slots)));
  });
  return ffi::Error::Success();
}

ffi::Error replay(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> states, ffi::Buffer<ffi::F32> keys,
                  ffi::Buffer<ffi::F32> updates, ffi::Buffer<ffi::F32> factors,
                  ffi::Buffer<ffi::S32> path, ffi::Buffer<ffi::S32> counts,
                  ffi::ResultBuffer<ffi::F32> after) {
  auto shape = states.dimensions();
  Replay call{states.typed_data(), keys.typed_data(), updates.typed_data(), factors.typed_data(),
              after->typed_data(), shape[1], keys.dimensions()[2], shape[2], shape[3]};
  if (call.after != call.states) memcpy(call.after, call.states, states.size_bytes());
  int64_t most = path.dimensions()[1], parts = shape[0] * call.heads, kept = 0;
  std::vector<int32_t> nodes(path.typed_data(), path.typed_data() + path.element_count());
  for (int32_t& node : nodes) node = node < 0 ? 0 : node < call.nodes ? node : call.nodes - 1;
  for (int64_t row = 0; row < shape[0]; row++) kept += counts.typed_data()[row];
  int64_t work = kept * call.heads * call.key_dim * call.value_dim;
  in_parts(pool, parts, work < (1 << 16) ? 1 : threads_of(pool, parts), [&](int64_t part) {
    int64_t row = part / call.heads, count = counts.typed_data()[row];
    chosen->replay(call, row, part % call.heads, nodes.data() + row * most,
                   count < most ? count : most);
  });
  return ffi::Error::Success();
}

ffi::Error convolve(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> inputs, ffi::Buffer<ffi::F32> kernel,
                    ffi::Buffer<ffi::F32> window, ffi::Buffer<ffi::PRED> seen,
                    ffi::ResultBuffer<ffi::F32> sums) {
  auto shape = inputs.dimensions();
  int64_t heads = shape[1], nodes = shape[2], lanes = shape[3];
  Convolution call{kernel.typed_data(), heads, lanes, window.dimensions()[2]};
  std::vector<jspec::Order> orders = orders_of(seen);
  int64_t parts = shape[0] * heads * nodes;
  int64_t threads = parts * lanes < (1 << 16) ? 1 : threads_of(pool, parts);
  in_parts(pool, parts, threads, [&](int64_t part) {
    int64_t of_head = part / nodes, node = part % nodes;
    const std::vector<int32_t>& parents = orders[of_head / heads].parents;
    std::vector<const float*> tokens;
    int64_t committed = call.before;
    for (int64_t back = 0; back <= call.before; back++) {
      if (node >= 0) {
        tokens.push_back(inputs.typed_data() + (of_head * nodes + node) * lanes);
        node = parents[node];
      } else {
        tokens.push_back(window.typed_data() + (of_head * call.before + --committed) * lanes);
      }
    }
    chosen->convolve(call, tokens.data(), of_head % heads, sums->typed_data() + part * lanes);
  });
  return ffi::Error::Success();
}

}  // namespace

// Takes the kernels of an instruction set, by its name; 0 where the processor has it not.
extern "C" int jspec_choose(const char* name) {
  tiles = nullptr;
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned a, b, c, d;
  bool halves = __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);  // F16C
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && halves;
  bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!strcmp(name, "amx") && avx2 && avx512) {
#if defined(JSPEC_HAS_integers_amx) && defined(__linux__)
    // Tiles in bfloat16 and in 8 bits, and the system's leave to have them: ARCH_REQ_XCOMP_PERM.
    const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25;
    bool there = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & needed) == needed;
    if (!there || syscall(SYS_arch_prctl, 0x1023, 18)) return 0;
    jspec_choose("avx512");
    tiles = &jspec::integers_amx;
#else
    return 0;
#endif
  } else if (!strcmp(name, "avx512") && avx2 && avx512) {
    chosen = &jspec::avx512, integers = &jspec::integers_avx512;
#if defined(JSPEC_HAS_integers_avx512vnni)
    if (__builtin_cpu_supports("avx512vnni")) integers = &jspec::integers_avx512vnni;
#endif
  } else if (!strcmp(name, "avx2") && avx2) {
    chosen = &jspec::avx2, integers = &jspec::integers_avx2;
#if defined(JSPEC_HAS_integers_avxvnni)
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1))
      integers = &jspec::integers_avxvnni;
#endif
  } else {
    return 0;
  }
  return 1;
#elif defined(__aarch64__)
  if (strcmp(name, "neon")) return 0;
  chosen = &jspec::neon, integers = &jspec::integers_neon;
#if defined(JSPEC_HAS_integers_neondot)
#if defined(__APPLE__)
  integers = &jspec::integers_neondot;
#elif defined(__linux__)
  if (getauxval(AT_HWCAP) >> 20 & 1) integers = &jspec::integers_neondot;
#endif
#endif
  return 1;
#else
  return 0;
#endif
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_product, product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_block_product, block_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<int32_t>("block_bytes")
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_rounded_product, rounded_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<int32_t>("block_bytes")
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_attend, attend,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<float>("soft_cap")
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_top, top,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_recur, recur,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Attr<int32_t>("delta")
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_replay, replay,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_convolve, convolve,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
