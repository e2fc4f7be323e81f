"""The kernels of a CPU: their numbers, their bits, and what they leave to XLA."""

import contextlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jspec import memory, sampling
from jspec._xla import native
from jspec._xla.native import library
from jspec.models import attention, eight_bits, linear
from jspec.testing.model_subject import above

there = pytest.mark.skipif(native.instruction_set() is None, reason=str(native.missing()))
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 3, 5, 8, 0, 10])


def bits(x):
    return np.asarray(x).view(np.uint32)


def weights_of(dtype, outputs, inputs, draw):
    if dtype == "int8":
        return jnp.asarray(draw.integers(-127, 128, (outputs, inputs)), jnp.int8)
    return jnp.asarray(draw.normal(size=(outputs, inputs)), dtype)


DTYPES = ("float32", "bfloat16", "int8")
SHAPES = ((1, 1), (7, 5), (50, 77), (97, 576), (24, 1600))


def rows_of(kind, size, draw):
    """Logits with ties, masked tokens, large numbers, NaN or infinity."""
    x = draw.normal(size=(2, 3, size)).astype(np.float32)
    if kind == "ties":
        return np.round(x) + 0.0  # for XLA -0.0 is below 0.0
    if kind == "masked":
        x[draw.random(x.shape) < 0.9] = x[0, 0] = -np.inf
    elif kind == "large":
        x *= 1e4
    elif kind == "broken":
        x[1, 1, size // 2], x[0, 1, -1] = np.nan, np.inf
    return x


@there
@pytest.mark.parametrize("kind", ["normal", "ties", "masked", "large", "broken"])
def test_the_top_of_rows_is_xlas_to_the_last_tie_and_their_sum(kind):
    draw = np.random.default_rng(0)
    for size, k in ((1, 1), (17, 8), (128, 2), (129, 64), (1000, 1), (5000, 9)):
        x = rows_of(kind, size, draw)
        values, places, sums = jax.jit(partial(native.top, k=k))(x)
        good = ~np.isnan(x).any(-1)
        for found, wanted in zip((values, places), jax.lax.top_k(x, k), strict=True):
            np.testing.assert_array_equal(np.asarray(found)[good], np.asarray(wanted)[good])
        assert ((places >= 0) & (places < size)).all(), "of rows with NaN too"
        np.testing.assert_allclose(sums, jax.nn.logsumexp(x, -1), rtol=1e-6, atol=1e-6)
        best, numbers = sampling.best_token(x)
        np.testing.assert_array_equal(best, sampling.argmax(x))
        np.testing.assert_array_equal(numbers, sampling.is_distribution(x))


@there
@pytest.mark.parametrize(("dtype", "outputs", "inputs"), [
    pytest.param(dtype, *shape, marks=[pytest.mark.slow] if (one + two) % 3 else [])
    for one, dtype in enumerate(DTYPES) for two, shape in enumerate(SHAPES)
])  # fmt: skip
def test_products_are_numpys_and_a_rows_bits_are_its_own(dtype, outputs, inputs):
    draw = np.random.default_rng(0)
    weights = weights_of(dtype, outputs, inputs, draw)
    x = draw.normal(size=(40, inputs)).astype(np.float32)
    run = jax.jit(native.product)
    whole = run(x, weights)
    wanted = x.astype(np.float64) @ np.asarray(weights, np.float64).T
    np.testing.assert_allclose(whole, wanted, atol=2e-6 * np.abs(wanted).max() * inputs**0.5)
    for rows in (1, 2, 3, 5, 6, 7, 8, 9, 13, 16, 17):
        np.testing.assert_array_equal(bits(run(x[:rows], weights)), bits(whole)[:rows])
    # Nor do they depend on neighbouring outputs.
    np.testing.assert_array_equal(bits(run(x[:9], weights[-1:])), bits(whole)[:9, -1:])


@there
def test_of_xlas_products_that_is_not_true():
    """The negative control."""
    draw = np.random.default_rng(0)
    weights = weights_of("float32", 960, 576, draw)
    x = draw.normal(size=(40, 576)).astype(np.float32)
    with native.disable():
        run = jax.jit(linear.product)
        whole = run(x, weights)
        parts = [bits(run(x[:rows], weights)) != bits(whole)[:rows] for rows in (1, 8)]
    assert any(part.any() for part in parts)


@there
@pytest.mark.parametrize("rows", [1, 4, 5, 16])
def test_one_of_several_matrices_is_that_matrix(rows):
    draw = np.random.default_rng(0)
    stack = jnp.asarray(draw.normal(size=(3, 20, 33)), jnp.float32)
    x = jnp.asarray(draw.normal(size=(rows, 33)), jnp.float32)
    narrow = eight_bits.LowPrecision(
        jnp.asarray(draw.integers(-99, 99, (3, 20, 33)), jnp.int8), stack[:, :, 0], jnp.float32
    )
    run = jax.jit(linear.multiply)
    for index in range(3):
        alone = linear.multiply(x, stack[index])
        np.testing.assert_array_equal(bits(run(x, stack, jnp.int32(index))), bits(alone))
        one = eight_bits.LowPrecision(narrow.weights[index], narrow.factors[index], jnp.float32)
        found = run(x, narrow, jnp.int32(index))
        np.testing.assert_array_equal(bits(found), bits(linear.multiply(x, one)))


def rounded_by_hand(x, weights, factors):
    """Rows in 127ths of their largest, by integers of 64 bits; factors in float32, as written."""
    largest = np.abs(x).max(-1, keepdims=True)
    inverse = np.float32(127) / np.where(largest, largest, 1).astype(np.float32)
    states = np.rint(x * inverse).astype(np.int64)
    sums = (states @ weights.astype(np.int64).T).astype(np.float32)
    return sums * (largest * np.float32(1 / 127)) * factors


@pytest.mark.parametrize(("kernels", "outputs", "inputs"), [
    *(pytest.param(True, *shape, marks=there) for shape in (*SHAPES, (3, 64))),
    (False, 7, 5), pytest.param(False, 97, 576, marks=pytest.mark.slow),
])  # fmt: skip
def test_products_of_integers_are_exact_with_kernels_and_without(kernels, outputs, inputs):
    draw = np.random.default_rng(0)
    weights = np.array(weights_of("int8", outputs, inputs, draw))
    factors = draw.normal(size=outputs).astype(np.float32)
    x = draw.normal(size=(20, inputs)).astype(np.float32)
    x[3], x[4, 0] = 0, 1e6
    x[5] = 127  # every product is the largest there is
    weights[0] = 127
    run = jax.jit(linear.multiply)
    with contextlib.nullcontext() if kernels else native.disable():
        held = eight_bits.LowPrecision(weights, factors, jnp.float32, rounds_states=True)
        whole = run(x, held)
        np.testing.assert_array_equal(bits(whole), bits(rounded_by_hand(x, weights, factors)))
        for rows in (1, 2, 3, 5, 6, 7, 9, 13):
            np.testing.assert_array_equal(bits(run(x[:rows], held)), bits(whole)[:rows])
        several = eight_bits.LowPrecision(
            np.stack([weights, weights[::-1]]), np.stack([factors, factors]), jnp.float32, True
        )
        other = jax.jit(linear.multiply)(x, several, jnp.int32(1))
        wanted = rounded_by_hand(x, weights[::-1], factors)
        np.testing.assert_array_equal(bits(other), bits(wanted))


@there
@pytest.mark.parametrize("rounds", [True, False])
def test_rows_that_are_prepared_in_several_turns_have_the_bits_of_fewer(rounds):
    draw = np.random.default_rng(0)
    weights = weights_of("int8" if rounds else "bfloat16", 50, 77, draw)
    held = eight_bits.LowPrecision(weights, np.ones(50, np.float32), jnp.float32, True)
    x = draw.normal(size=(530, 77)).astype(np.float32)
    # Without tiles XLA multiplies so many rows by numbers that are not rounded.
    rows = slice(None) if rounds or native.instruction_set() == "AMX" else slice(0, 128)
    run = jax.jit(lambda x: linear.multiply(x, held if rounds else weights))
    parts = [run(x[rows][at : at + 100]) for at in range(0, len(x[rows]), 100)]
    np.testing.assert_array_equal(bits(run(x[rows])), bits(np.concatenate(parts)))


@pytest.mark.parametrize("kernels", [pytest.param(True, marks=there), False])
def test_a_rounded_nan_row_affects_no_other_row(kernels):
    draw = np.random.default_rng(0)
    held = eight_bits.LowPrecision(
        weights_of("int8", 30, 70, draw), np.ones(30, np.float32), jnp.float32, rounds_states=True
    )
    x = draw.normal(size=(9, 70)).astype(np.float32)
    with contextlib.nullcontext() if kernels else native.disable():
        clean = np.asarray(linear.multiply(x, held))
        for value in (np.nan, np.inf, -np.inf):
            bad = x.copy()
            bad[4, 7] = value
            found = np.asarray(linear.multiply(bad, held))
            assert np.isnan(found[4]).all()
            others = np.arange(9) != 4
            np.testing.assert_array_equal(found[others], clean[others])
        assert not np.asarray(linear.multiply(x * 1e-36, held)).any()
    # XLA for a CPU loses a NaN in the maximum of a row as long as this one.
    long = jnp.ones((2, 2048)).at[1, 7].set(jnp.nan)
    assert np.isnan(jax.jit(eight_bits.round_states)(long)[1]).tolist() == [[False], [True]]


@there
@pytest.mark.parametrize("dtype", DTYPES)
def test_nans_stay_and_affect_no_other_row(dtype):
    draw = np.random.default_rng(0)
    weights = weights_of(dtype, 30, 40, draw)
    x = draw.normal(size=(9, 40)).astype(np.float32)
    clean = np.asarray(native.product(x, weights))
    for value in (np.nan, np.inf, -np.inf):
        bad = x.copy()
        bad[4, 7] = value
        found = np.asarray(native.product(bad, weights))
        assert not np.isfinite(found[4]).any()
        others = np.arange(9) != 4
        np.testing.assert_array_equal(found[others], clean[others])


@there
def test_unsupported_products_are_xlas():
    x = jnp.ones((4, 8))
    many = jnp.ones((129, 8))
    in_tiles = native.instruction_set() == "AMX"
    assert native.takes_product(many, jnp.ones((3, 8), jnp.bfloat16)) == in_tiles
    assert native.takes_block_product(many, jnp.ones((3, 34), jnp.uint8), 34) == in_tiles
    assert not native.takes_block_product(many, jnp.ones((3, 144), jnp.uint8), 144)
    assert native.takes_product(x, jnp.ones((3, 8)))
    assert not native.takes_product(many, jnp.ones((3, 8)))
    assert not native.takes_product(jnp.ones((0, 8)), jnp.ones((3, 8)))
    assert not native.takes_product(x, jnp.ones((0, 8)))
    assert not native.takes_product(x, jnp.ones((3, 8), jnp.float16))
    assert not native.takes_product(x.astype(jnp.float16), jnp.ones((3, 8)))
    assert linear.product(jnp.ones((0, 8)), jnp.ones((3, 8))).shape == (0, 3)
    assert linear.product(x, jnp.ones((3, 8), jnp.float16)).tolist() == [[8.0] * 3] * 4


def long_softmax(q, keys, values, soft_cap):
    """One query [D] over all keys [T, D] that it sees, float64."""
    scores = keys.astype(np.float64) @ q
    scores = scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)
    weights = np.exp(scores - scores.max())
    return weights @ values.astype(np.float64) / weights.sum()


@there
@pytest.mark.parametrize(("dtype", "dim", "heads", "group", "window", "soft_cap"), [
    pytest.param(dtype, *sizes, marks=[pytest.mark.slow] if (one + two) % 2 else [])
    for one, dtype in enumerate(DTYPES) for two, sizes in enumerate(
        [(8, 2, 1, None, None), (20, 1, 3, 5, None), (64, 3, 3, None, 2.0), (80, 2, 2, 40, 1.5)])
])  # fmt: skip
def test_attention_is_one_long_softmax_and_a_nodes_bits_are_its_tokens(
    dtype, dim, heads, group, window, soft_cap
):
    """A tree behind a cache, against float64; then its paths, committed token by token."""
    draw = np.random.default_rng(0)
    size, slots, lengths = len(PARENTS), 90, np.array([71, 3])

    def normal(*shape):
        return jnp.asarray(draw.normal(size=shape), "float32" if dtype == "int8" else dtype)

    def held(*shape):
        return memory.kept(normal(*shape), jnp.int8 if dtype == "int8" else None)

    q = normal(2, size, heads * group, dim)
    k, v = held(2, heads, size, dim), held(2, heads, size, dim)
    keys, values = held(2, heads, slots, dim), held(2, heads, slots, dim)
    mask = above(PARENTS)
    depths = mask.sum(-1) - 1

    @jax.jit
    def run(q, k, v, mask, keys, values, lengths, positions):
        held = attention.Past(attention.Cached(keys, values, lengths), None)
        return attention.attend(
            q, k, v, mask, held, positions, window=window, soft_cap=soft_cap
        )  # fmt: skip

    whole = run(
        q, k, v, np.broadcast_to(mask, (2, size, size)), keys, values, lengths,
        lengths[:, None] + depths,
    )  # fmt: skip
    shaped = np.asarray(whole, np.float32).reshape(2, size, heads, group, dim)
    wide = [np.asarray(x.astype(jnp.float32)) for x in (q, k, v, keys, values)]
    scaled = np.asarray(q * dim**-0.5, np.float32).reshape(2, size, heads, group, dim)
    for row in range(2):
        for node in range(size):
            path = np.flatnonzero(mask[node])
            held, new = lengths[row], len(path)
            first = 0 if window is None else max(0, held + new - window)
            for head in range(heads):
                seen = [
                    np.concatenate([past[row, head, :held], own[row, head, path]])[first:]
                    for past, own in ((wide[3], wide[1]), (wide[4], wide[2]))
                ]
                for mate in range(group):
                    wanted = long_softmax(scaled[row, node, head, mate], *seen, soft_cap)
                    atol = 2e-2 if dtype == "bfloat16" else 2e-6
                    np.testing.assert_allclose(shaped[row, node, head, mate], wanted, atol=atol)

    # Now each node as the only new token, its ancestors committed.
    for node in range(size):
        path = np.flatnonzero(mask[node])
        for row in range(2):
            at = lengths[row] + np.arange(len(path) - 1)
            one = [jax.tree.map(lambda x, row=row: x[row : row + 1], part)
                   for part in (q, k, v, keys, values)]  # fmt: skip
            filled = jax.tree.map(
                lambda x, new, at=at, path=path: x.at[:, :, at].set(new[:, :, path[:-1]]),
                one[3:], one[1:3],
            )  # fmt: skip
            own = jax.tree.map(lambda x, node=node: x[:, :, node : node + 1], one[1:3])
            last = lengths[row : row + 1] + len(path) - 1
            alone = run(one[0][:, node : node + 1], *own, np.ones((1, 1, 1), bool), *filled,
                        last, last[:, None])  # fmt: skip
            found = np.asarray(alone[0, 0], np.float32)
            np.testing.assert_array_equal(
                bits(found), bits(np.asarray(whole, np.float32)[row, node])
            )


@there
def test_transformations_of_jax():
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(3, 8)), jnp.float32)
    weights = jnp.asarray(draw.normal(size=(5, 8)), jnp.float32)

    def squared(x, weights):
        return jnp.square(linear.product(x, weights)).sum()

    def plainly(x, weights):
        return jnp.square(x @ weights.T).sum()

    for found, wanted in zip(
        jax.grad(squared, (0, 1))(x, weights), jax.grad(plainly, (0, 1))(x, weights), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    alone = jnp.stack([linear.product(row, weights) for row in x])
    rows = jax.jit(jax.vmap(linear.product, in_axes=(0, None)))(x, weights)
    np.testing.assert_array_equal(bits(rows), bits(alone))
    both = jax.vmap(linear.product)(x, jnp.stack([weights, 2 * weights, weights]))
    np.testing.assert_array_equal(bits(both[1]), bits(2 * alone[1]))


@there
def test_a_jitted_program_calls_the_kernel_and_an_exported_one_does_not():
    x, weights = jnp.ones((3, 8)), jnp.ones((5, 8))
    run = jax.jit(linear.product)
    assert called(run, x, weights)
    for platforms in (None, ["tpu"], ["cuda"]):
        text = jax.export.export(run, platforms=platforms)(x, weights).mlir_module()
        assert "jspec_product" not in text and "dot_general" in text


X, WEIGHTS = (
    np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((8, 3, 40), (8, 40))
)
ROWS, WHOLE = PartitionSpec("data"), PartitionSpec()


@pytest.fixture(scope="module")
def alone():
    return np.stack([linear.product(x, WEIGHTS) for x in X])


def called(run, *arguments):
    """True if a program calls the kernel."""
    return "jspec_product" in run.lower(*arguments).as_text()


def mesh_of(kind=AxisType.Auto):
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    return jax.make_mesh((8,), ("data",), axis_types=(kind,))


@there
def test_each_device_of_a_pmap_and_of_a_shard_map_calls_the_kernel(alone):
    spread = jax.pmap(linear.product, in_axes=(0, None))
    mapped = jax.jit(
        jax.shard_map(linear.product, mesh=mesh_of(), in_specs=(ROWS, WHOLE), out_specs=ROWS)
    )
    for run in (spread, mapped):
        np.testing.assert_array_equal(run(X, WEIGHTS), alone)
        assert called(run, X, WEIGHTS)


@there
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [ROWS, WHOLE])
def test_on_a_mesh_it_is_xlas_which_splits_it(kind, spec, alone):
    """Rows that are split, and weights that are."""
    mesh = mesh_of(kind)
    x = jax.device_put(X, NamedSharding(mesh, spec))
    weights = jax.device_put(WEIGHTS, NamedSharding(mesh, WHOLE if spec == ROWS else ROWS))
    run = jax.jit(linear.product)
    np.testing.assert_allclose(run(x, weights), alone, atol=1e-5)
    assert not called(run, x, weights)


@there
def test_a_loop_and_a_program_compiled_ahead_call_it(alone):
    def over(x, weights):
        return jax.lax.scan(lambda _, row: (None, linear.product(row, weights)), None, x)[1]

    run = jax.jit(over)
    assert called(run, X, WEIGHTS)
    np.testing.assert_array_equal(run.lower(X, WEIGHTS).compile()(X, WEIGHTS), alone)


@pytest.fixture
def afresh(monkeypatch):
    """The library is looked for again."""
    monkeypatch.delenv(library.SWITCH, raising=False)
    library._load.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    library._load.cache_clear()


@pytest.mark.parametrize(("value", "said"), [
    ("0", "JSPEC_NATIVE=0 switches them off"),
    ("sse", "JSPEC_NATIVE is 'sse'; it may be 0 or one of amx, avx512, avx2, neon"),
])  # fmt: skip
def test_a_variable_switches_them_off(afresh, value, said):
    afresh.setenv(library.SWITCH, value)
    assert native.missing() == said and native.instruction_set() is None
    assert not native.takes_product(jnp.ones((2, 3)), jnp.ones((4, 3)))
    assert linear.product(jnp.ones((2, 3)), jnp.ones((4, 3))).tolist() == [[3.0] * 4] * 2


def test_no_library_and_one_that_does_not_load_are_a_sentence_each(afresh, tmp_path):
    afresh.setattr(library, "FILE", tmp_path / "libjspec.so")
    assert native.missing() == (
        "jspec was installed without a C++ compiler; install one, then jspec again"
    )
    (tmp_path / "libjspec.so").write_bytes(b"no library")
    library._load.cache_clear()
    assert str(native.missing()).startswith("the library libjspec.so does not load: ")
    assert native.instruction_set() is None


@pytest.mark.slow
@pytest.mark.parametrize("other", ["avx512", "avx2"])
def test_other_instructions_of_the_processor(other):
    """All of these files, where the processor has better ones that were tested already."""
    known = list(library.SETS)
    used = {name: key for key, name in library.SETS.items()}.get(native.instruction_set() or "")
    if used is None or known.index(other) <= known.index(used):
        pytest.skip(f"the kernels here are of {native.instruction_set()}")
    here = Path(__file__).parent
    files = [
        __file__,
        str(here / "test_recurrence_kernels.py"),
        str(here / "../../models/test_blocks.py"),
    ]
    options = ["-m", "not slow", "-n", "0", "-k", "not variable"]
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *map(str, files), *options],
        env=os.environ | {"JSPEC_NATIVE": other}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:]
