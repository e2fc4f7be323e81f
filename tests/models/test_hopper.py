"""The kernel of a Hopper GPU against XLA's attention, step by step on a CPU.

`.ci/gpu_kernels.py` compiles it for the chip.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu

import jspec
from jspec._xla import native
from jspec.models.attention import XLA, Cached, Past, attend
from jspec.models.block_attention import BlockAttention, Hopper, choice

NODES, HEADS, MATES, DIM, SLOTS, LAYERS = 40, 1, 2, 64, 136, 2
LENGTHS = np.array([0, 100], np.int32)
BY = BlockAttention(
    nodes=Hopper(64, num_splits=1, interpret=True), past=Hopper(64, num_splits=2, interpret=True)
)


def attended(impl, dtype=jnp.bfloat16, length=None, **options):
    """The attention of two rows, one of which has no past, in the second of two scanned layers."""
    draw = np.random.default_rng(0)

    def random(*shape):
        return jnp.asarray(draw.normal(size=(len(LENGTHS), *shape)), jnp.bfloat16).astype(dtype)

    q, k, v = (
        random(NODES, HEADS * MATES, DIM),
        random(HEADS, NODES, DIM),
        random(HEADS, NODES, DIM),
    )
    keys, values = random(HEADS * LAYERS, SLOTS, DIM), random(HEADS * LAYERS, SLOTS, DIM)
    lengths = jnp.asarray(LENGTHS if length is None else [0, length])
    past = Past(Cached(keys, values, lengths, jnp.int32(1)), None)
    tree = np.broadcast_to(choice.random_mask(NODES), (len(LENGTHS), NODES, NODES))
    positions = lengths[:, None] + tree.sum(-1) - 1
    found = attend(q, k, v, jnp.asarray(tree), past, positions, **options, impl=impl)
    return np.asarray(found, np.float32)


@pytest.mark.parametrize("options", [{}, {"soft_cap": 2.0, "window": 20}], ids=["plain", "bent"])
def test_it_has_the_numbers_of_xlas_attention(options):
    if not hasattr(mosaic_gpu, "InterpretGPUParams"):
        pytest.skip(f"JAX {jax.__version__} runs kernels of Mosaic on a GPU alone")
    found = attended(BY, **options)
    # The same numbers, of 16 bits, in products of 32.
    wanted = attended(XLA, jnp.float32, **options)
    np.testing.assert_allclose(found, wanted, atol=0.02)
    # A slot less is seen.
    assert np.abs(attended(XLA, jnp.float32, length=99, **options) - wanted).max() > 0.02


def test_what_it_does_not_take_is_left_to_xla():
    sizes = dict(queries=80, slots=SLOTS, dim=DIM, dtype=jnp.bfloat16)
    assert Hopper().sized(**sizes) == Hopper()
    for other in (dict(dtype=jnp.float32), dict(dim=96), dict(dim=256), dict(slots=70)):
        assert Hopper().sized(**{**sizes, **other}) is None
    with pytest.raises(jspec.InputError, match="block is 96, no multiple of 64; pass 64"):
        Hopper(96)
    # 32 bits: the kernel would not run on a CPU.
    impl = BlockAttention(nodes=Hopper(), past=Hopper())
    with native.disabled():
        found, wanted = (attended(each, jnp.float32) for each in (impl, XLA))
    np.testing.assert_array_equal(found, wanted)


def test_it_is_lowered_without_a_gpu():
    impl = BlockAttention(nodes=Hopper(num_splits=1), past=Hopper())

    def run(q, k, mask, keys, lengths):
        return attend(q, k, k, mask, Past(Cached(keys, keys, lengths), None), impl=impl)

    of_nodes, cache = (2, HEADS, NODES, DIM), (2, HEADS, SLOTS, DIM)
    shapes = [(2, NODES, HEADS * MATES, DIM), of_nodes, (2, NODES, NODES), cache, (2,)]
    dtypes = [jnp.bfloat16, jnp.bfloat16, bool, jnp.bfloat16, jnp.int32]
    arguments = map(jax.ShapeDtypeStruct, shapes, dtypes)
    text = jax.jit(run).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@mosaic_gpu_v2") == 2
