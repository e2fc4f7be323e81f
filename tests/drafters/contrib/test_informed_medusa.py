"""Compares drafted trees with the oracle, which keeps its lines in a dictionary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rounds
import tiny
from oracle import informed_medusa as oracle

import jspec
from jspec.drafters.contrib.informed_medusa import InformedMedusa, InformedState
from jspec.types import Frame

HEADS, HOT = tiny.medusa(num_heads=3), tiny.medusa(num_heads=3, hot_tokens=11)
SHAPE = dict(num_speculative_tokens=9, max_depth=5, beam=3)


def decoded(target, drafter, variables, **request):
    return jspec.decode(
        *target, tiny.PROMPTS, tiny.LENGTHS, drafter=drafter, drafter_params=variables,
        max_new_tokens=24, **request,
    )  # fmt: skip


def lines_of(matrix):
    """(token before, token) -> the line that the drafter has to read, or None."""
    lines = np.asarray(matrix.lines[0])
    single = {token: lines[token].tolist() for token in range(tiny.VOCAB) if lines[token].any()}
    keys = [] if matrix.keys is None else np.asarray(matrix.keys[0]).tolist()
    pairs = {
        divmod(key - 1, tiny.VOCAB): lines[tiny.VOCAB + slot].tolist()
        for slot, key in enumerate(keys)
        if key
    }
    return lambda before, token: pairs.get((before, token), single.get(token)), len(pairs)


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        pytest.param(HEADS, {"strength": 0.6, "pairs": 4096}, id="pairs"),
        pytest.param(HOT, {"strength": 1.0, "pairs": 0}, id="hot", marks=pytest.mark.slow),
        pytest.param(HEADS, {"strength": 0.0, "pairs": 64}, id="none", marks=pytest.mark.slow),
    ],
)
def test_a_tree_is_the_oracles(target, heads, options):
    drafter, variables = InformedMedusa(heads, **SHAPE, **options), tiny.medusa_variables(heads)
    state = decoded(target, drafter, variables).drafter_state
    matrix = state.matrix
    again = drafter.init(3, 32, state).matrix
    np.testing.assert_array_equal(again.lines, matrix.lines, "a later call begins with them")
    line_after, known = lines_of(matrix)
    assert (known > 0) == (options["pairs"] > 0), "some pairs were met"
    drawn = np.random.default_rng(7)
    hidden = jnp.asarray(drawn.normal(size=(6, 16)), jnp.float32)
    root, before = drawn.integers(0, tiny.VOCAB, (2, 6)).astype(np.int32)
    root[:3], before[:3] = tiny.PROMPTS[:, 1], tiny.PROMPTS[:, 0]
    if matrix.before is not None:
        matrix = matrix.replace(before=jnp.asarray(before))
    frame = rounds.greedy(root, [5, 6, 7, 8, 9, 0])
    tree, _ = jax.jit(drafter.draft)(variables, InformedState(hidden, matrix), frame)
    few = np.float64(heads.apply(variables, hidden[:, None])[:, 0])
    scores = np.broadcast_to(few.min(-1, keepdims=True), (6, 3, tiny.VOCAB)).copy()
    scores[..., np.asarray(heads.scored(variables))] = few
    assert not rounds.drafted(tree, 5), "before the first token no state is known"
    for row in range(5):
        want = oracle.tree(
            scores[row], line_after, int(before[row]), int(root[row]),
            nodes=9, depth=5, beam=3, strength=options["strength"],
        )  # fmt: skip
        found = rounds.drafted(tree, row)
        assert set(found) == set(want)
        for path, value in want.items():
            np.testing.assert_allclose(found[path], value, rtol=1e-3)


@pytest.mark.slow
def test_lines_count_for_nothing_where_heads_are_from_temperature_1_on(target):
    variables, keys = tiny.medusa_variables(HEADS), jax.random.split(jax.random.key(3), 3)
    memory = decoded(target, InformedMedusa(HEADS, **SHAPE, pairs=64), variables).drafter_state
    ones = jnp.ones(3)
    sampling = jspec.Sampling(jnp.array([0.0, 1.0, 2.0]), jnp.zeros(3, jnp.int32), ones, 0 * ones)
    frame = Frame(jnp.arange(3), jnp.arange(3) + 5, keys, sampling, jnp.zeros(3, bool))
    state = InformedState(jnp.ones((3, 16)), memory.matrix)

    def tokens(strength):
        drafter = InformedMedusa(HEADS, 6, 3, 3, strength, pairs=64)
        return np.asarray(jax.jit(drafter.draft)(variables, state, frame)[0].tokens)

    np.testing.assert_array_equal(tokens(4.0)[1:], tokens(0.0)[1:])
    assert (tokens(4.0)[0] != tokens(0.0)[0]).any()


def test_heads_trees_and_states_that_do_not_fit_are_refused(target):
    with pytest.raises(ValueError, match="pass Medusa's heads"):
        InformedMedusa(tiny.eagle())
    with pytest.raises(ValueError, match="pairs is 3; pass a power of two"):
        InformedMedusa(HEADS, pairs=3)
    with pytest.raises(ValueError, match="num_speculative_tokens is 99"):
        InformedMedusa(HEADS, num_speculative_tokens=99, max_depth=2, beam=3)
    state = jspec.TokenRecycling(tiny.VOCAB).init(3, 8, None)
    with pytest.raises(ValueError, match="is a MatrixState and this drafter keeps"):
        decoded(
            target, InformedMedusa(HEADS, **SHAPE), tiny.medusa_variables(HEADS),
            drafter_state=state,
        )  # fmt: skip
