"""What every drafter owes: its draft changes the number of rounds and nothing else."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from contract.methods import ALONE, DRAFTERS

import jspec
from jspec import tree as trees
from jspec.base import Frame

LIMIT = 40
SAMPLED = dict(sampling=jspec.Sampling(temperature=0.8, top_p=0.9), key=7)


@pytest.fixture(scope="module")
def target():
    model = tiny.model()
    return model, tiny.params(model)


@pytest.fixture(scope="module")
def plain(target):
    """What plain decoding gives, by name of the request."""
    return {
        "greedy": decode(target),
        "sampled": decode(target, **SAMPLED),
    }


def decode(target, prompt=tiny.PROMPTS, lengths=tiny.LENGTHS, **options):
    return jspec.decode(*target, prompt, lengths, max_new_tokens=LIMIT, **options)


@pytest.fixture(params=DRAFTERS)
def method(request):
    drafter, params = DRAFTERS[request.param]
    return dict(drafter=drafter, drafter_params=params)


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_tokens_are_those_of_plain_decoding(target, plain, method, kind):
    result = decode(target, **method, **(SAMPLED if kind == "sampled" else {}))
    np.testing.assert_array_equal(result.tokens, plain[kind].tokens)
    np.testing.assert_array_equal(result.status, plain[kind].status)
    steps = np.asarray(result.stats.num_rounds)
    assert (steps <= LIMIT).all()
    np.testing.assert_array_equal(steps + result.stats.num_accepted_tokens, result.lengths)
    np.testing.assert_allclose(result.stats.mean_acceptance_length, LIMIT / steps, rtol=1e-6)
    assert (
        np.asarray(result.stats.num_accepted_tokens) <= np.asarray(result.stats.num_draft_tokens)
    ).all()


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("method", ALONE, indirect=True)
def test_a_row_does_not_see_its_neighbours(target, plain, method, kind):
    row = 1
    result = decode(
        target,
        tiny.PROMPTS[[row]],
        tiny.LENGTHS[[row]],
        rows=[row],
        **method,
        **(SAMPLED if kind == "sampled" else {}),
    )
    np.testing.assert_array_equal(result.tokens[0], plain[kind].tokens[row])


def test_end_tokens_and_limits_cut_inside_an_accepted_path(target, plain, method):
    tokens = np.asarray(plain["greedy"].tokens)
    ends = [int(tokens[0, 5]), int(tokens[1, 11])]
    limits = np.array([LIMIT, LIMIT, 3])
    result = decode(target, eos=ends, limits=limits, **method)
    for row in range(3):
        want = tokens[row, : limits[row]]
        stops = np.flatnonzero(np.isin(want, ends))
        want = want[: stops[0] + 1] if stops.size else want
        assert result.tokens[row, : result.lengths[row]].tolist() == want.tolist()
        assert not result.tokens[row, result.lengths[row] :].any()
        assert result.status[row] == (jspec.Status.EOS if stops.size else jspec.Status.LIMIT)


def test_a_hot_start_changes_no_token_and_compiles_nothing(target, plain, method):
    first = decode(target, **method)
    model = tiny.Counted(target[0], [])
    again = jspec.decode(
        model, target[1], tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT, **method
    )
    traces = len(model.traces)
    hot = jspec.decode(
        model,
        target[1],
        tiny.PROMPTS,
        tiny.LENGTHS,
        max_new_tokens=LIMIT,
        drafter_state=again.drafter_state,
        **method,
    )
    assert len(model.traces) == traces
    np.testing.assert_array_equal(first.tokens, plain["greedy"].tokens)
    np.testing.assert_array_equal(hot.tokens, plain["greedy"].tokens)


def test_a_drafter_is_static_and_equal_to_its_copy(method):
    drafter = method["drafter"]
    assert hash(copy.deepcopy(drafter)) == hash(drafter)
    assert copy.deepcopy(drafter) == drafter


def test_its_trees_are_trees(target, method):
    """Round by round: parents first, absent nodes childless, depth and width as declared."""
    model, params = target
    drafter, weights = method["drafter"], method["drafter_params"]
    draft = jax.jit(drafter.draft)
    state = jspec.prefill(model, params, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT, **method)
    shapes = set()
    for _ in range(6):
        frame = Frame(
            root=state.root,
            positions=state.cache.lengths,
            keys=None,
            sampling=None,
            done=state.done,
        )
        tree, _ = draft(weights, state.drafter_state, frame)
        shapes.add(tree.tokens.shape)
        parents, valid = np.asarray(tree.parents), np.asarray(tree.valid)
        nodes = np.arange(parents.shape[1])
        np.testing.assert_array_equal(tree.tokens[:, 0], state.root)
        assert (parents[:, 0] == -1).all()
        assert valid[:, 0].all()
        assert ((parents[:, 1:] >= 0) & (parents[:, 1:] < nodes[1:])).all()
        above = np.take_along_axis(valid, np.maximum(parents, 0), axis=1)
        assert (above | ~valid).all()
        present = np.asarray(trees.depths(tree))[valid]
        assert present.max() <= tree.depth
        for row in range(len(parents)):
            live = parents[row, 1:][valid[row, 1:]]
            assert live.size == 0 or np.bincount(live).max() <= tree.width
        assert ((np.asarray(tree.tokens) >= 0) & (np.asarray(tree.tokens) < tiny.VOCAB)).all()
        state = jspec.step(model, params, state, **method)
    assert len(shapes) == 1


def test_a_row_of_nan_ends_alone(target, plain, method):
    """Poison in the cache of one row makes its logits NaN; the others must not notice."""
    model, params = target
    state = jspec.prefill(model, params, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT, **method)
    keys = (state.cache.keys[0].at[1, :, 0].set(jnp.nan), *state.cache.keys[1:])
    state = state.replace(cache=state.cache.replace(keys=keys))
    while not state.done.all():
        state = jspec.step(model, params, state, **method)
    assert state.status.tolist() == [jspec.Status.LIMIT, jspec.Status.NAN, jspec.Status.LIMIT]
    assert state.lengths.tolist() == [LIMIT, 0, LIMIT]
    for row in (0, 2):
        assert state.out[row, :LIMIT].tolist() == plain["greedy"].tokens[row].tolist()
