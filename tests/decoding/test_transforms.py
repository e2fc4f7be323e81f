"""`decode` taken whole by the transformations of JAX, on eight virtual devices."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from contract.methods import DRAFTERS
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from quick import only

import jspec
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=tiny.VOCAB)
PARAMS = MODEL.init()
LIMIT = 12
BATCH = 8
PROMPTS = np.tile(tiny.PROMPTS[:2], (4, 1))
LENGTHS = np.tile(tiny.LENGTHS[:2], 4)
ROWS = np.arange(BATCH)
SAMPLING = jspec.Sampling(temperature=0.9, top_p=0.9)


@pytest.fixture(scope="module")
def target():
    model = tiny.model(num_layers=1)
    return model, tiny.params(model)


@pytest.fixture(scope="module")
def generate():
    drafter = jspec.TokenRecycling(tiny.VOCAB, jspec.tree.branching([3, 1]))

    def call(params, prompt, lengths, rows, key):
        result = jspec.decode(
            MODEL, params, prompt, lengths, drafter=drafter, max_new_tokens=LIMIT,
            sampling=SAMPLING, key=key, row_ids=rows,
        )  # fmt: skip
        return result.tokens, result.lengths

    return call


@pytest.fixture(scope="module")
def want(generate):
    return np.asarray(generate(PARAMS, PROMPTS, LENGTHS, ROWS, jax.random.key(0))[0])


def data_mesh():
    # Explicit axes (sharding in types, the default of make_mesh) would ask the model for them.
    return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def test_shard_map(generate, want):
    mesh = data_mesh()
    rows, whole = PartitionSpec("data"), PartitionSpec()
    sharded = jax.jit(
        jax.shard_map(
            generate, mesh=mesh, in_specs=(whole, rows, rows, rows, whole), out_specs=(rows, rows)
        )
    )
    tokens, _ = sharded(PARAMS, PROMPTS, LENGTHS, ROWS, jax.random.key(0))
    np.testing.assert_array_equal(tokens, want)


# One of each kind of loop, and the kinds that compile for more than a second are slow.
LOOPS = ("dyspec", "lookahead", "lyanna_separate", "mixture", "rest", "spectr")


@pytest.mark.parametrize("name", only(LOOPS, "lookahead", "rest", "spectr"))
def test_shard_map_finds_no_fault_with_any_drafter(target, name):
    """The check of varying axes, which happens while it traces: no loop begins with a constant."""
    drafter, weights = DRAFTERS[name]
    rows, whole = PartitionSpec("data"), PartitionSpec()

    def call(params, weights, prompt, lengths, ids):
        return jspec.decode(
            target[0], params, prompt, lengths, drafter=drafter, drafter_params=weights,
            max_new_tokens=6, sampling=SAMPLING, key=0, row_ids=ids,
        ).tokens  # fmt: skip

    sharded = jax.shard_map(
        call, mesh=data_mesh(), in_specs=(whole, whole, rows, rows, rows), out_specs=rows
    )
    arrays = (jnp.asarray(PROMPTS, jnp.int32), jnp.asarray(LENGTHS), jnp.asarray(ROWS))
    assert jax.eval_shape(sharded, target[1], weights, *arrays).shape == (BATCH, 6)


def test_a_sharded_batch_stays_sharded(generate, want):
    mesh = data_mesh()
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    prompt, lengths, rows = (jax.device_put(x, sharding) for x in (PROMPTS, LENGTHS, ROWS))
    tokens, _ = generate(PARAMS, prompt, lengths, rows, jax.random.key(0))
    np.testing.assert_array_equal(tokens, want)
    assert tokens.sharding.is_equivalent_to(sharding, tokens.ndim)


def test_rows_without_ids_have_those_of_the_whole_batch_under_shard_map(want):
    """Over the axes that their prompts are split over, and no others."""
    rows = PartitionSpec("data")

    def call(prompt, lengths, key):
        return jspec.decode(
            MODEL, PARAMS, prompt, lengths, max_new_tokens=LIMIT, sampling=SAMPLING, key=key
        ).tokens

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    key = jax.random.key(0)
    mapped = jax.shard_map(call, mesh=mesh, in_specs=(rows, rows, PartitionSpec()), out_specs=rows)
    np.testing.assert_array_equal(jax.jit(mapped)(PROMPTS, LENGTHS, key), want)
    # Keys that differ are enough: each shard's rows are counted from 0.
    keys = jax.random.split(key, 4)
    mapped = jax.shard_map(
        lambda prompt, lengths, key: call(prompt, lengths, key[0]),
        mesh=mesh, in_specs=(rows, rows, rows), out_specs=rows,
    )  # fmt: skip
    found = np.asarray(jax.jit(mapped)(PROMPTS, LENGTHS, keys)).reshape(4, 2, -1)
    for device in range(4):
        part = slice(2 * device, 2 * device + 2)
        alone = call(PROMPTS[part], LENGTHS[part], keys[device])
        np.testing.assert_array_equal(found[device], alone)


def test_calls_whose_rows_cannot_be_told_apart_are_warned_of():
    def call(prompt, key, **more):
        return jspec.decode(
            MODEL, PARAMS, prompt, max_new_tokens=4, **{"sampling": SAMPLING, "key": key} | more
        ).tokens

    rows = PartitionSpec("data")
    unchecked = partial(
        jax.shard_map, mesh=data_mesh(), in_specs=rows, out_specs=rows, check_vma=False
    )
    many = np.ones((BATCH, 3), int)
    for mapped, prompt in ((jax.pmap, many[:, None]), (unchecked, many)):
        with pytest.warns(UserWarning, match="mapped by jax.pmap or .* without row_ids"):
            jax.eval_shape(mapped(lambda prompt: call(prompt, 0)), prompt)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jax.eval_shape(mapped(lambda prompt: call(prompt, 0, row_ids=prompt[:, 0])), prompt)
            jax.eval_shape(mapped(lambda prompt: call(prompt, None, sampling=None)), prompt)

    prompts = np.ones((2, 1, 3), int)
    with pytest.warns(UserWarning, match="mapped by jax.vmap without row_ids"):
        jax.eval_shape(jax.vmap(call, (0, None)), prompts, jax.random.key(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(jax.vmap(call), prompts, jax.random.split(jax.random.key(0)))
        jax.eval_shape(
            jax.vmap(lambda prompt, row: call(prompt, 0, row_ids=row)),
            prompts,
            np.ones((2, 1), int),
        )
