"""The kernel of tree attention against XLA's attention, step by step on a CPU, and lowered."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jspec
from jspec._xla import native
from jspec.models import BatchInvariant, attention
from jspec.models.attention import Cached, Past, attend
from jspec.models.block_attention import BlockAttention, Triton, kernel, visits
from jspec.testing.model_subject import above

TRITON = BlockAttention(
    nodes=Triton(16, 32, interpret=True), past=Triton(32, 32, num_splits=2, interpret=True)
)
# 5 earlier nodes and 40 new ones, 2 heads of 3 group-mates each; blocks divide none of it.
EARLIER, NEW, HEADS, MATES, DIM, SLOTS = 5, 40, 2, 3, 16, 75
LENGTHS = np.array([0, 40, 75], np.int32)
ATTENTION = ("soft_cap", "window", "impl")


def random_tree(size):
    draw = np.random.default_rng(7)
    return above([-1, *(int(draw.integers(node)) for node in range(1, size))])


@pytest.fixture(scope="module")
def arrays():
    """Arguments of `attended`, of three rows with the same tree."""
    draw = np.random.default_rng(0)

    def random(*shape):
        return draw.normal(size=(len(LENGTHS), *shape)).astype(np.float32)

    tree = random_tree(EARLIER + NEW)[EARLIER:]
    mask = np.broadcast_to(tree, (len(LENGTHS), *tree.shape)).copy()
    return dict(
        q=random(NEW, HEADS * MATES, DIM), k=random(HEADS, NEW, DIM), v=random(HEADS, NEW, DIM),
        mask=mask, nodes=(random(HEADS, EARLIER, DIM), random(HEADS, EARLIER, DIM)),
        cached=Cached(random(HEADS, SLOTS, DIM), random(HEADS, SLOTS, DIM), LENGTHS),
        positions=LENGTHS[:, None] + tree.sum(-1) - 1,
    )  # fmt: skip


@partial(jax.jit, static_argnames=ATTENTION)
def attended(q, k, v, mask, nodes, cached, positions, *, impl, soft_cap=None, window=None):
    past = Past(cached, nodes)
    return attend(q, k, v, mask, past, positions, soft_cap=soft_cap, window=window, impl=impl)


CAP_AND_WINDOW = {"soft_cap": 1.5, "window": 7}


@pytest.mark.parametrize("options", [{}, CAP_AND_WINDOW], ids=["plain", "cap and window"])
def test_the_kernel_is_xlas_attention(arrays, options):
    wanted = attended(**arrays, impl=attention.XLA, **options)
    np.testing.assert_allclose(attended(**arrays, impl=TRITON, **options), wanted, atol=1e-5)
    # One bit more in the mask of one node is noticed, and is what the mask says.
    row, node = 1, 30
    other = int(np.flatnonzero(~arrays["mask"][row, node, :-1])[-1])
    flipped = arrays["mask"].copy()
    flipped[row, node, other] = True
    changed = arrays | {"mask": flipped}
    found = np.asarray(attended(**changed, impl=TRITON, **options))
    np.testing.assert_allclose(found, attended(**changed, impl=attention.XLA, **options), atol=1e-5)
    off = np.abs(found - wanted).max(-1) > 1e-4
    assert np.argwhere(off).tolist() == [[row, node]] or options.get("window")
    assert off[row, node]


IN_ORDER = Triton(16, 32, num_splits=2, interpret=True)


@pytest.mark.parametrize(("depth", "kernel", "options"), [
    (3, None, {}), (None, None, CAP_AND_WINDOW), (3, IN_ORDER, CAP_AND_WINDOW),
    pytest.param(None, IN_ORDER, {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_order_of_positions_is_xlas_attention(arrays, depth, kernel, options):
    """Whatever the depth is said to be, and whatever is in the nodes that a query does not see."""
    wanted = attended(**arrays, impl=attention.XLA, **options)
    invariant = BatchInvariant(NEW, depth, kernel)
    found = np.asarray(attended(**arrays, impl=invariant, **options))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    below = arrays["mask"][0, :, EARLIER + 1]
    bad = arrays["v"].copy()
    bad[:, :, 1, 3] = np.nan
    spoilt = np.asarray(attended(**(arrays | {"v": bad}), impl=invariant, **options))
    np.testing.assert_array_equal(spoilt[:, ~below], found[:, ~below])
    assert np.isnan(spoilt[:, 1]).any()


def of_one_text(committed, width, place):
    """A text's last token behind so many committed ones, its path from `place` on in a tree."""
    draw = np.random.default_rng(0)
    size, path = 60, 60 - committed
    q, k, v = (draw.normal(size=(size, HEADS, DIM)).astype(np.float32) for _ in range(3))
    held = [np.zeros((1, HEADS, SLOTS, DIM), np.float32) for _ in range(2)]
    # Other nodes, before and behind, and what stands in dead slots, differ from call to call.
    other = np.random.default_rng(width)
    nodes = [other.normal(size=(1, HEADS, width, DIM)).astype(np.float32) for _ in range(2)]
    queries = other.normal(size=(1, width, HEADS, DIM)).astype(np.float32)
    for cache, tree, part in zip(held, nodes, (k, v), strict=True):
        cache[:] = other.normal(size=cache.shape)
        cache[0, :, :committed] = part[:committed].swapaxes(0, 1)
        tree[0, :, place : place + path] = part[committed:].swapaxes(0, 1)
    queries[0, place : place + path] = q[committed:]
    mask = np.eye(width, dtype=bool)
    mask[place : place + path, place : place + path] = np.tri(path, dtype=bool)
    lengths = np.array([committed], np.int32)
    positions = lengths[:, None] + mask.sum(-1) - 1
    cached, last = Cached(*held, lengths), place + path - 1
    return (queries, *nodes, mask[None], None, cached, positions), last


@pytest.mark.parametrize(("impl", "equal"), [
    (BatchInvariant(24, 7, IN_ORDER), True), (BatchInvariant(24, 4, IN_ORDER), False),
    (BlockAttention(past=Triton(16, 32, interpret=True)), False),
], ids=["in order", "a path that is deeper", "nodes last"])  # fmt: skip
def test_the_kernel_in_order_gives_the_same_bits_in_any_shape(impl, equal):
    """Alone behind all others, and at the end of a path of eight in a tree of 24."""
    found = []
    for committed, width, place in ((59, 1, 0), (52, 24, 11)):
        arguments, last = of_one_text(committed, width, place)
        found.append(np.asarray(attended(*arguments, impl=impl))[0, last])
    assert np.array_equal(*found) is equal
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_nan_node_affects_only_its_descendants(arrays):
    clean = np.asarray(attended(**arrays, impl=TRITON))
    below = arrays["mask"][0, :, EARLIER + 1]
    assert 1 < below.sum() < NEW
    for value in (np.nan, np.inf):
        bad = arrays["v"].copy()
        bad[:, :, 1, 3] = value
        found = np.asarray(attended(**(arrays | {"v": bad}), impl=TRITON))
        np.testing.assert_array_equal(found[:, ~below], clean[:, ~below])
        assert np.isnan(found[:, below]).any(-1).all()


@pytest.mark.slow
def test_a_layer_among_others_is_the_same_layer_alone(arrays):
    held = arrays["cached"]

    def beside(array):
        """Heads' layers side by side, of which the second one is meant."""
        stacked = np.stack([array + 1, array, array - 1], axis=2)
        return stacked.reshape(len(array), -1, *array.shape[2:])

    layer = np.int32(1)
    among = Cached(beside(held.keys), beside(held.values), held.lengths, layer)
    wanted = attended(**arrays, impl=TRITON)
    np.testing.assert_array_equal(attended(**(arrays | {"cached": among}), impl=TRITON), wanted)


def test_only_blocks_with_an_entry_are_visited():
    """Counted as the mask has them, and in the order of the tiles."""
    tree = random_tree(96)
    visited = jax.jit(lambda mask: visits.of_bits(visits.pack_bits(mask[None]), tile=32, block=32))
    found = visited(tree)
    tiles = tree.reshape(3, 32, 3, 32).any((1, 3))
    assert found.counts.tolist() == [tiles.sum(-1).tolist()]
    for tile in range(3):
        count = int(found.counts[0, tile])
        assert found.blocks[0, tile, :count].tolist() == np.flatnonzero(tiles[tile]).tolist()
    # A chain has no empty block below the diagonal; siblings have the root's and their own.
    siblings = np.eye(96, dtype=bool)
    siblings[:, 0] = True
    assert visited(siblings).counts.tolist() == [[1, 2, 2]]
    assert visited(np.tri(96, dtype=bool)).counts.tolist() == [[1, 2, 3]]


def test_blocks_of_the_past_go_from_the_oldest_slot_seen_to_the_last_live_one():
    """Tiles of two queries, 75 slots in blocks of 32; no block is listed that is not there."""
    limits = [[[0, 75], [0, 75]], [[40, 70], [33, 70]], [[99, 75], [99, 75]], [[0, 0], [0, 0]]]
    found = visits.of_range(jnp.asarray(limits), tile=2, block=32, slots=75)
    assert found.counts.tolist() == [[3], [2], [0], [0]]
    assert found.blocks[1, 0, :2].tolist() == [1, 2]
    assert int(found.blocks.max()) == 2 and int(found.blocks.min()) == 0


def test_what_is_not_supported_is_left_to_xla(arrays, monkeypatch):
    assert Triton().with_sizes(queries=8, slots=64, dim=24) is None
    assert Triton().with_sizes(queries=8, slots=31, dim=64) is None
    few = BlockAttention(past=Triton(16, 128))  # more slots than there are
    found = attended(**arrays, impl=few)
    with native.disable():
        np.testing.assert_array_equal(found, attended(**arrays, impl=attention.XLA))
    # A JAX that has it no more; with it, this asks for a GPU.
    monkeypatch.setattr(kernel, "_TRITON", "jax.experimental.pallas.gone")
    np.testing.assert_array_equal(attended(**arrays, impl=BlockAttention(nodes=Triton(64))), found)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="interpret"):
        attended(**arrays, impl=BlockAttention(nodes=Triton(16, 32)))


def test_sizes_that_no_compiler_takes_are_one_sentence():
    for sizes, said in (
        (dict(tile=48), "tile is 48, no power of two; pass 64"),
        (dict(block=16), "block"),
        (dict(num_splits=0), "num_splits"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            Triton(**sizes)


CALL = "@__gpu$xla.gpu.triton"
GPU = BlockAttention(nodes=Triton(64, 32), past=Triton(128, 64, num_splits=8, num_warps=8))


def lowered(dtype, nodes, heads, mates, dim, layers, options, placed=None, impl=GPU, to="cuda"):
    """The program of an attention behind 2,048 slots, as a GPU's compiler gets it."""
    if jax.version.__version_info__ > (0, 10, 2):
        pytest.skip("newer JAX compiles the kernel where it lowers it, for which it needs CUDA")
    rows, slots = 2, 2048
    new, held = (rows, heads, nodes, dim), (rows, heads * layers, slots, dim)

    def run(q, k, v, mask, keys, values, lengths, layer):
        past = Past(Cached(keys, values, lengths, layer if layers > 1 else None), None)
        positions = lengths[:, None] + jnp.arange(nodes)
        return attend(q, k, v, mask, past, positions, **options, impl=impl)

    shapes = [((rows, nodes, heads * mates, dim), dtype), (new, dtype), (new, dtype)]
    shapes += [((rows, nodes, nodes), bool), (held, dtype), (held, dtype)]
    shapes += [((rows,), jnp.int32), ((), jnp.int32)]
    arguments = [jax.ShapeDtypeStruct(*shape, sharding=placed) for shape in shapes]
    return jax.jit(run).trace(*arguments).lower(lowering_platforms=(to,)).as_text()


def test_the_kernel_is_lowered_without_its_device():
    """Two kernels, of the nodes and of the past, or one. No device compiles them here."""
    for dtype, sizes, options in (
        (jnp.bfloat16, (64, 8, 8, 128, 1), {}),  # 70B
        (jnp.float32, (40, 3, 3, 64, 4), {"soft_cap": 30.0, "window": 1024}),  # SmolLM, scanned
    ):
        assert lowered(dtype, *sizes, options).count(CALL) == 2
    in_order = BatchInvariant(16, kernel=Triton(64, 64, num_splits=8))
    assert lowered(jnp.bfloat16, 16, 8, 4, 128, 1, {}, impl=in_order).count(CALL) == 1


def test_the_default_takes_the_kernel_for_the_nodes_of_a_large_tree_on_a_gpu():
    """512 drafted ones and the root; not for a chunk of a prompt, and for training nowhere."""
    for tokens, device, kernels in ((513, "cuda", 1), (512, "cuda", 0), (513, "cpu", 0)):
        sizes = (tokens, 1, 2, 64, 1)
        text = lowered(jnp.bfloat16, *sizes, {}, impl=attention.XLA, to=device)
        assert text.count(CALL) == kernels, (tokens, device)
    trained = jax.make_jaxpr(lambda q, k, mask: attend(q, k, k, mask, Past(None, None)))
    many, mask = jnp.zeros((1, 513, 1, 64)), jnp.ones((1, 513, 513), bool)
    assert "pallas_call" not in str(trained(many, many.swapaxes(1, 2), mask))


def test_arrays_on_several_devices_are_left_to_xla():
    for devices, kernels in ((1, 2), (2, 0)):
        mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
        everywhere = NamedSharding(mesh, PartitionSpec())
        text = lowered(jnp.bfloat16, 16, 2, 1, 128, 1, {}, everywhere)
        assert text.count(CALL) == kernels
