"""Placement of arrays in compiled programs, and the devices' exchanges."""

import re
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jspec
from jspec._xla import mesh_axes
from jspec.arrays.top_k import largest, top_k
from jspec.models import sharding

VOCAB = 1024
SHAPE = dict(vocab_size=VOCAB, num_kv_heads=4)
BATCH = 8
NODES = 4
EXCHANGES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def exchanges(text):
    """(kind, most numbers that a device gets, place in the program) of all exchanges of devices."""
    found = []
    for line in text.splitlines():
        if match := re.search(rf" = (.*?) ({EXCHANGES})(?:-start)?\(", line):
            shapes = re.findall(r"\[([\d,]*)\]", match[1])
            sizes = [prod(map(int, re.findall(r"\d+", shape))) for shape in shapes]
            name = re.search(r'op_name="([^"]*)"', line)
            found.append((match[2], max(sizes), name[1] if name else ""))
    return found


def in_the_loop(text):
    """Of these, what every round does."""
    return [each for each in exchanges(text) if "decode_rounds" in each[2]]


def mesh_of(rows, parts):
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    return jax.make_mesh((rows, parts), ("data", "model"), (AxisType.Auto, AxisType.Auto))


def compiled(mesh, drafter, laid_out=True, num_layers=2, **options):
    """The whole generation, with a batch and weights on a mesh: program and arguments."""
    model = tiny.model(**SHAPE, num_layers=num_layers)
    params = tiny.params(model)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    prompts = jax.device_put(np.tile(tiny.PROMPTS[:1], (BATCH, 1)).astype(np.int32), rows)
    if laid_out:
        model, weights = sharding.spread(model, params, mesh)
    else:
        weights = jax.device_put(params, sharding.params(params, mesh))

    def generate(params, prompts):
        return jspec.decode(
            model, params, prompts, drafter=drafter, max_new_tokens=6, key=0, **options
        ).tokens

    return jax.jit(generate).lower(weights, prompts).compile().as_text()


SAMPLED = dict(sampling=jspec.Sampling(temperature=0.9))
RECYCLING = jspec.TokenRecycling(VOCAB, jspec.tree.branching([3]), per_row=True)


@pytest.fixture(scope="module")
def both():
    """Rows over two devices, weights over four."""
    return compiled(mesh_of(2, 4), RECYCLING, **SAMPLED)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("mesh", [(1, 8), (2, 4), (8, 1)])
def test_the_largest_are_those_of_one_device(mesh, split):
    mesh = mesh_of(*mesh)
    x = np.random.default_rng(0).integers(0, 9, (8, 2, 256)).astype(np.float32)  # many are equal
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", None, "model")))
    run = jax.jit(lambda x: top_k(x, 8) if split else largest(x, 8))
    values, places = run(spread)
    want = jax.lax.top_k(x, 8)
    np.testing.assert_array_equal(places, want[1])
    np.testing.assert_array_equal(values, want[0])


@pytest.mark.slow
def test_rows_exchange_nothing_but_conditions():
    """Two bits: have all rows ended, and does any draw at random."""
    found = in_the_loop(compiled(mesh_of(8, 1), RECYCLING, num_layers=1, **SAMPLED))
    assert found
    for kind, size, name in found:
        assert (kind, size) == ("all-reduce", 1), name
        assert name.endswith(("reduce_and", "reduce_or")), name


@pytest.mark.slow
def test_top_k_as_jax_has_it_gathers_all_rows(monkeypatch):
    """Finds what the test above looks for."""
    monkeypatch.setattr(
        "jspec.arrays.top_k.of_parts", lambda select, x, k, split=True: select(x, k)
    )
    # A drafter of its own, whose trace no other test is given.
    other = jspec.TokenRecycling(VOCAB, jspec.tree.branching([2]), per_row=True)
    found = in_the_loop(compiled(mesh_of(8, 1), other, num_layers=1, **SAMPLED))
    assert any(kind == "all-gather" for kind, _, _ in found)


@pytest.mark.slow
def test_no_gather_is_larger_than_a_row_of_the_vocabulary_for_each_node(both):
    rows = BATCH // 2
    for kind, size, name in in_the_loop(both):
        assert size <= rows * NODES * VOCAB, (kind, name)
        # Indeed nothing comes near: a device gets the best of each part, and sums of states.
        assert size <= rows * NODES * max(tiny.model().hidden_size, 4 * RECYCLING.k), (kind, name)


@pytest.mark.parametrize("tokens", [[[7]], [[7, 1000], [0, 7]]])
def test_tokens_are_looked_up_in_a_table_that_devices_share(tokens):
    """`.ci/ahead.py` has what they exchange for it on GPUs."""
    table = np.random.default_rng(0).normal(size=(VOCAB, 16)).astype(np.float32)
    split = NamedSharding(mesh_of(1, 8), PartitionSpec("model"))
    found = jax.jit(mesh_axes.look_up)(jax.device_put(table, split), jnp.array(tokens))
    np.testing.assert_array_equal(found, table[np.array(tokens)])


def test_a_layer_exchanges_two_sums_and_no_more(both):
    """Behind attention and behind the MLP (Shoeybi et al. 2019), of a state for each node."""
    states = BATCH // 2 * NODES * tiny.model().hidden_size
    products = [each for each in in_the_loop(both) if "Block" in each[2]]
    assert all(each[:2] == ("all-reduce", states) for each in products), products
    assert len(products) == 2 * tiny.model().num_layers
    assert not any(kind == "collective-permute" for kind, _, _ in exchanges(both))


@pytest.mark.slow
def test_columns_that_do_not_lie_with_their_heads_would_be_found():
    found = in_the_loop(compiled(mesh_of(2, 4), RECYCLING, laid_out=False, **SAMPLED))
    assert any(kind == "collective-permute" for kind, _, _ in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rsd_s", "dyspec"])
def test_trees_as_published_gather_less_than_a_row_of_the_vocabulary(name):
    """Their draft draws without replacement, their rule from what is left of a distribution."""
    draft = tiny.draft(**SHAPE)
    drafter = {
        "rsd_s": jspec.RSDS.published(draft, beam=2, max_depth=2),
        "dyspec": jspec.DySpec.published(draft, num_speculative_tokens=4, max_depth=3),
    }[name]
    text = compiled(mesh_of(2, 4), drafter, drafter_params=tiny.params(draft), **SAMPLED)
    # A device of this mesh has four rows.
    assert max(size for _, size, _ in in_the_loop(text)) < BATCH // 2 * VOCAB


def test_whole_logits_would_be_found():
    """Here they are asked for."""
    mesh = mesh_of(2, 4)
    spread = NamedSharding(mesh, PartitionSpec("data", None, "model"))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    gather = jax.jit(lambda x: x * 2, in_shardings=spread, out_shardings=rows)
    text = gather.lower(jax.ShapeDtypeStruct((BATCH, NODES, VOCAB), "float32")).compile().as_text()
    assert max(size for _, size, _ in exchanges(text)) == BATCH // 2 * NODES * VOCAB


def test_each_device_draws_the_noise_of_its_own_part(both):
    drawn = [line for line in both.splitlines() if "gumbel" in line or "threefry" in line]
    sizes = {
        int(n)
        for line in drawn
        for s in re.findall(r" = \w+\[([\d,]+)\]", line)
        for n in s.split(",")
    }
    assert VOCAB // 4 in sizes
    assert VOCAB not in sizes


def test_a_mesh_of_other_names_gives_the_same():
    mesh = jax.make_mesh((8,), ("x",), (AxisType.Auto,))
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("x")))
    np.testing.assert_array_equal(
        jax.jit(partial(largest, k=3))(spread)[1], jax.lax.top_k(jnp.asarray(x), 3)[1]
    )
