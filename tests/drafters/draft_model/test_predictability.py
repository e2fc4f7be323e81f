"""Predictability: the presence of a slot never depends on the token drawn into it.

Each of these once let it, and biased what was emitted by tens of standard deviations.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tables

import jspec
from jspec import sampling as samplings
from jspec.drafters.draft_model.dyspec import remaining_mass
from jspec.types import Frame
from jspec.verify import proposals, schemes

SIZE = 8
MODEL = tables.Table(SIZE)


@pytest.mark.parametrize("first", [1.0, 0.5])
def test_the_remaining_mass_is_rounded_without_the_draw(first):
    """1 - (sum - own) is 0 or 6e-8 by the token itself where the first has nearly all mass."""
    own = jnp.geomspace(1e-9, 0.4, 200).astype(jnp.float32)
    probabilities = jnp.stack([jnp.full_like(own, first), own, own / 2], axis=-1)
    assert (remaining_mass(probabilities)[:, 1] == 1 - first).all()


def test_a_node_without_a_distribution_has_no_independent_draws():
    """Block verification would test the token above them by a distribution that is not there."""
    logits = jnp.zeros((2, 1, SIZE)).at[0, 0, 3].set(jnp.nan)
    zeros = jnp.zeros(2, jnp.int32)
    keys = samplings.row_keys(jax.random.key(0), jnp.arange(2))
    one = jnp.ones(2)
    sampling = jspec.Sampling(one, zeros, one, 0 * one)
    frame = Frame(zeros, zeros, keys, sampling, one > 1)
    drawn = jax.jit(lambda: proposals.with_replacement(logits, None, frame, 0, 3))()
    assert (drawn.scores > -jnp.inf).tolist() == [[[False] * 3], [[True] * 3]]


@pytest.mark.slow
def test_tokens_that_the_draft_holds_impossible_leave_sharpness_a_number():
    """They are among a node's best where fewer than a beam's width are possible."""
    rng = np.random.default_rng(0)
    target = rng.normal(size=(1, SIZE, SIZE)).astype(np.float32)
    draft = target.copy()
    draft[0, :4, 2:] = -np.inf
    draft[0, 5] = np.nan
    prompts = np.array([[1, 2], [6, 7], [3, 3]])
    request = dict(max_new_tokens=40, sampling=jspec.Sampling(1.0), key=0)
    drafter = jspec.CoupledTree(MODEL, num_speculative_tokens=6, max_depth=3, beam=4)
    plain = jspec.decode(MODEL, target, prompts, **request)
    result = jspec.decode(MODEL, target, prompts, drafter=drafter, drafter_params=draft, **request)
    assert (result.tokens == plain.tokens).all()
    assert jnp.isfinite(result.drafter_state.memory.log).all()
    assert (result.stats.mean_acceptance_length > 1.2).all()


@pytest.mark.parametrize("beam", [1, 4])
def test_a_tree_says_no_more_children_or_levels_than_it_has_nodes(beam):
    """The walk and block verification size their arrays by what a tree says of itself."""
    drafter = jspec.DySpec(
        MODEL, num_speculative_tokens=2, max_depth=5, beam=beam, scheme=schemes.RECURSIVE
    )
    one, keys = jnp.ones(1, jnp.int32), samplings.row_keys(jax.random.key(0), jnp.arange(1))
    sampling = jspec.Sampling(*(jnp.full(1, value) for value in (1.0, 0, 1.0, 0.0)))
    frame = Frame(0 * one, one, keys, sampling, one > 1)
    distributions = jnp.zeros((1, SIZE, SIZE))
    tree, _ = jax.eval_shape(drafter.draft, distributions, drafter.init(1, 16, None), frame)
    assert tree.width <= 2
    assert tree.depth <= 2
