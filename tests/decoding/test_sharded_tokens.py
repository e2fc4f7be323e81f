"""Tokens on eight virtual devices are those of one: weights, rows and vocabulary spread out.

Sums over devices add up in another order, so two logits nearer than that could change places. The
tests' models are random with large weights, in float32: no two logits come so near.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jspec
import jspec.models
from jspec.models import sharding
from jspec.protocols import Drafting

KINDS = {"automatic": AxisType.Auto, "explicit": AxisType.Explicit}
PROMPTS = np.tile(tiny.PROMPTS[:2], (2, 1)).astype(np.int32)
LENGTHS = np.tile(tiny.LENGTHS[:2], 2).astype(np.int32)
SAMPLED = dict(sampling=jspec.Sampling(temperature=0.9, top_p=0.9), key=0)
LIMIT = 10
VOCAB = 64


def mesh_of(kind="automatic", rows=2, parts=4):
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    return jax.make_mesh((rows, parts), ("data", "model"), (KINDS[kind],) * 2)


def both(mesh, model, params, drafter, drafter_params=None, rules=sharding.DRAFT, **options):
    """The results of one device and of the mesh."""
    ask = dict(drafter=drafter, max_new_tokens=LIMIT, **options)
    one = jspec.decode(model, params, PROMPTS, LENGTHS, drafter_params=drafter_params, **ask)
    model, split = sharding.spread(model, params, mesh)
    own = jax.device_put(drafter_params, sharding.params(drafter_params, mesh, rules))
    prompts, lengths = sharding.batch((PROMPTS, LENGTHS), mesh)
    many = jspec.decode(model, split, prompts, lengths, drafter_params=own, **ask)
    assert many.tokens.sharding.spec[0] == "data"
    return one, many


def same(one, many):
    np.testing.assert_array_equal(many.tokens, one.tokens)
    np.testing.assert_array_equal(many.lengths, one.lengths)
    np.testing.assert_array_equal(many.stats.acceptance_histogram, one.stats.acceptance_histogram)


def target(**changes):
    model = tiny.model(**(dict(vocab_size=VOCAB, num_kv_heads=4) | changes))
    return model, tiny.params(model)


def drafters():
    """(drafter, its params, rules of its params) by name."""
    small = tiny.draft(vocab_size=VOCAB, num_kv_heads=4)
    weights = tiny.params(small)
    recycling = jspec.TokenRecycling(VOCAB, jspec.tree.branching([3, 1]))
    suffix = jspec.Suffix(num_speculative_tokens=3, max_depth=3, capacity=32)
    auto = jspec.merge(recycling, suffix, num_speculative_tokens=6)
    lyanna = tiny.lyanna(vocab_size=VOCAB)
    tree = jspec.CoupledTree(small, num_speculative_tokens=6, max_depth=3, beam=4)
    dyspec = jspec.DySpec(small, num_speculative_tokens=6, max_depth=3, beam=4)
    return {
        "token_recycling": (recycling, None, sharding.DRAFT),
        "auto": (auto, (None, None), sharding.DRAFT),
        "coupled_tree": (tree, weights, sharding.DRAFT),
        "coupled_tree_split": (tree, weights, sharding.TARGET),
        "dyspec": (dyspec, weights, sharding.DRAFT),
        "pard": (jspec.PARD(small, 1, jspec.tree.branching([2, 1])), weights, sharding.DRAFT),
        "lyanna": (jspec.Lyanna(lyanna, 4, resampling=None), lyanna, sharding.HEAD),
        "lyanna_fused": (jspec.Lyanna(lyanna, 6), lyanna, sharding.HEAD),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    "auto coupled_tree coupled_tree_split dyspec lyanna lyanna_fused pard token_recycling".split(),
)
def test_every_kind_of_drafter(name):
    model, params = target(**(dict(num_layers=1) if name == "token_recycling" else {}))
    drafter, weights, rules = drafters()[name]
    if name.startswith("lyanna"):
        # What it borrows is the target's own.
        weights = tiny.variables(weights)
        weights = {**weights, "target": {k: params["params"][k] for k in ("embed", "head")}}
    more = SAMPLED
    if name == "auto":
        costs = jspec.CostCurve.of({1: 1.0, 4: 1.1, 7: 1.3, 28: 2.0})
        more = SAMPLED | dict(policy=jspec.Adaptive((0, 3, 6)), policy_params=costs)
    same(*both(mesh_of(), model, params, drafter, weights, rules, **more))


FIXTURES = Path(__file__).parents[1] / "models/fixtures"
FAMILIES = sorted(file.parent.name for file in FIXTURES.glob("*/config.json"))


# Each once, every second one sampled. The quick one has learned positions and biases.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sampled"), [(name, number % 2 == 0) for number, name in enumerate(FAMILIES)]
)
def test_every_family(name, sampled):
    model, params, _ = jspec.models.load(FIXTURES / name, with_tokenizer=False)
    drafter = jspec.PromptLookup(num_speculative_tokens=2)
    same(*both(mesh_of(), model, params, drafter, **(SAMPLED if sampled else {})))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["as it is", "jit", "step"])
def test_explicit_axes_give_the_same(how):
    """Uses the default of `jax.make_mesh`: shardings are in the types of arrays."""
    model, params = target()
    drafter = jspec.TokenRecycling(VOCAB, jspec.tree.branching([3, 1]), per_row=True)
    ask = dict(drafter=drafter, **SAMPLED)
    one = jspec.decode(model, params, PROMPTS, LENGTHS, max_new_tokens=LIMIT, **ask)
    mesh = mesh_of("explicit")
    split = jax.device_put(params, sharding.params(params, mesh))
    batch = sharding.batch((PROMPTS, LENGTHS), mesh)
    if how == "step":
        state = jspec.prefill(model, split, *batch, max_new_tokens=LIMIT, **ask)
        state = jspec.fork(state, jnp.arange(4), drafter=drafter, key=0)
        while not state.done.all():
            state = jspec.step(model, split, state, drafter=drafter)
        assert jax.typeof(state.memory.keys[0]).sharding.spec[:2] == ("data", "model")
        np.testing.assert_array_equal(state.tokens[:, :LIMIT], one.tokens)
        return

    def generate(params, prompt, lengths):
        return jspec.decode(model, params, prompt, lengths, max_new_tokens=LIMIT, **ask)

    many = (jax.jit(generate) if how == "jit" else generate)(split, *batch)
    assert jax.typeof(many.tokens).sharding.spec[0] == "data"
    same(one, many)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_spread_as_they_are_loaded(kind):
    mesh = mesh_of(kind)
    whole = jspec.models.load("jspec-800k", with_tokenizer=False)
    loaded = jspec.models.load("jspec-800k", with_tokenizer=False, mesh=mesh)
    model, params = sharding.spread(whole.model, whole.params, mesh)
    assert model == loaded.model

    def check(ours, theirs):
        assert ours.sharding == theirs.sharding
        np.testing.assert_array_equal(ours, theirs)

    jax.tree.map(check, params, loaded.params)


def test_a_model_on_explicit_axes_is_not_checked_there():
    model, params = target()
    split = jax.device_put(params, sharding.params(params, mesh_of("explicit")))
    with pytest.raises(jspec.InputError, match="the params lie on a mesh of explicit axes"):
        jspec.testing.check_model(model, split)


def test_the_cache_is_made_where_it_will_lie():
    """No device has all of it, not even at first."""
    model, params = target()
    mesh = mesh_of()
    split = jax.device_put(params, sharding.params(params, mesh))
    state = jspec.prefill(model, split, sharding.batch(PROMPTS, mesh), max_new_tokens=LIMIT)
    whole = state.memory.keys[0]
    assert whole.addressable_shards[0].data.size * 8 == whole.size
    drafting = Drafting(jspec.Autoregressive(), None, jspec.FixedWidth())
    made = jspec.decoding._empty_on(mesh, model, drafting, 4, 128)((None, None))[0].keys[0]
    assert made.sharding.is_equivalent_to(
        NamedSharding(mesh, PartitionSpec("data", "model")), whole.ndim
    )
