import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rounds
import tiny
from flax import struct
from oracle import budgeted_merge as oracle

import jspec
from jspec import tree as trees
from jspec.drafters.growth.calibration import BASE_LOG_ODDS, NUM_BUCKETS
from jspec.types import Feedback, Output, Tree, Verdict

ROOT = 21
BATCH = 3


@struct.dataclass
class Told:
    """Weights of `Telling`: the trees that it is to draft."""

    tokens: jax.Array
    valid: jax.Array
    value: jax.Array | None


class Telling(jspec.Drafter):
    """Drafts what it is told, in the shape of a template."""

    def __init__(self, template):
        self.template = template

    def draft(self, params, state, frame):
        tree = self.template.fill(params.tokens)
        return tree.replace(valid=params.valid, value=params.value), None


def told(template, rng, estimates):
    """Random trees over few tokens, so that siblings repeat and drafters agree."""
    shape = (BATCH, template.num_nodes)
    tokens = rng.integers(0, 4, shape)
    tokens[:, 0] = ROOT
    valid, value = np.ones(shape, bool), np.ones(shape, np.float32)
    for node in range(1, template.num_nodes):
        parent = template.parents[node]
        valid[:, node] = valid[:, parent] & (rng.random(BATCH) < 0.9)
        value[:, node] = value[:, parent] * rng.uniform(0.001, 0.6, BATCH)
    return Told(
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(valid),
        jnp.asarray(value) if estimates else None,
    )


def nodes(tree, row):
    """{path of tokens: node} of the drafted nodes; the first of equal ones."""
    found = {}
    for node, path in rounds.paths(tree, row).items():
        found.setdefault(path, node)
    return found


def forest(drafters, params, row):
    """Returns each drafter's feedback by the oracle. Of equal siblings the first counts."""
    found = []
    for drafter, weights in zip(drafters, params, strict=True):
        tree, _ = drafter.draft(weights, (), None)
        found.append(
            {
                path: None if tree.value is None else float(tree.value[row, node])
                for path, node in nodes(tree, row).items()
            }
        )
    return found


def feedback(tree, emitted, counts):
    zeros = jnp.zeros_like(counts, jnp.int32)
    return Feedback(
        tree=tree,
        output=Output(jnp.zeros((*tree.tokens.shape, 1)), None),
        verdict=Verdict(jnp.zeros_like(emitted), counts, zeros, zeros > 0),
        emitted=emitted,
        counts=counts,
        positions=zeros,
        done=counts == 0,
    )


@pytest.mark.slow
def test_the_best_nodes_are_kept_and_all_that_was_offered_is_learnt_from():
    """Round by round against loops over paths; drafters with estimates and without."""
    rng = np.random.default_rng(0)
    drafters = (
        Telling(trees.branching([3, 2])),
        Telling(trees.chain(5)),
        Telling(trees.branching([2, 2, 1])),
    )
    mixture = jspec.merge(*drafters, num_speculative_tokens=6)
    beliefs, state = oracle.fresh(), mixture.init(BATCH, 64, None)
    frame = rounds.greedy([ROOT] * BATCH)
    draft, update = jax.jit(mixture.draft), jax.jit(mixture.update)
    cut = False
    for _ in range(30):
        params = tuple(told(d.template, rng, d is not drafters[1]) for d in drafters)
        # Distinct siblings, or a drafter's own repeats would have ranks that paths have not.
        params = tuple(_distinct(d.template, p) for d, p in zip(drafters, params, strict=True))
        tree, aux = draft(params, state, frame)
        assert (tree.depth, tree.tokens.shape[1]) == (5, 7)
        rows = []
        counts = rng.integers(0, tree.depth + 2, BATCH)
        emitted = np.zeros((BATCH, tree.depth + 1), np.int32)
        for row in range(BATCH):
            offered = forest(drafters, params, row)
            value = oracle.value(oracle.probabilities_of(offered, beliefs[0]))
            best, last, first_out = oracle.kept(value, 6)
            got = nodes(tree, row)
            assert len(got) == int(tree.valid[row, 1:].sum()) == min(6, len(value))
            if last > first_out * (1 + 1e-4):
                assert set(got) == best
            for path, node in got.items():
                np.testing.assert_allclose(tree.value[row, node], value[path], rtol=1e-3)
            # What is emitted follows some offer, kept or not, and then leaves it.
            path = list(value)[rng.integers(len(value))]
            cut |= path not in got
            text = [*path, *rng.integers(0, 4, 6)][: counts[row]]
            emitted[row, : len(text)] = text
            rows.append((offered, text))
        outcome = feedback(tree, jnp.asarray(emitted), jnp.asarray(counts))
        state = update(params, state, aux, outcome)
        beliefs = oracle.learnt(beliefs, rows)
        bias = np.asarray(state.acceptance.bias)
        np.testing.assert_allclose(bias[0], beliefs[0][None], atol=2e-3)
        for name, value in beliefs[0].items():
            if name is not None:
                drafter, kind = name
                np.testing.assert_allclose(bias[1 + drafter * NUM_BUCKETS + kind], value, atol=2e-3)
        assert np.count_nonzero(bias) <= len(beliefs[0])
    assert cut


def _distinct(template, params):
    """Siblings with tokens of their own; which ones still differs from row to row."""
    tokens, ranks = np.array(params.tokens), template.ranks
    for node in range(1, template.num_nodes):
        first = node - ranks[node]
        tokens[:, node] = (tokens[:, first] + ranks[node]) % 4
    return params.replace(tokens=jnp.asarray(tokens))


def test_equal_siblings_are_one_node():
    """As in a row of the adjacency matrix that was never written."""
    template = trees.branching([3, 2])
    same = Told(jnp.zeros((1, 10), jnp.int32).at[:, 0].set(ROOT), jnp.ones((1, 10), bool), None)
    mixture = jspec.merge(Telling(template), Telling(template), num_speculative_tokens=9)
    state = mixture.init(1, 8, None)
    frame = rounds.greedy([ROOT])
    tree, _ = jax.jit(mixture.draft)((same, same), state, frame)
    assert nodes(tree, 0).keys() == {(0,), (0, 0)}
    assert int(tree.valid.sum()) == 3


def test_a_drafter_that_finds_nothing_leaves_its_nodes_to_the_others():
    chain, bush = trees.chain(6), trees.branching([4, 2])
    mixture = jspec.merge(Telling(chain), Telling(bush), num_speculative_tokens=8)
    state = mixture.init(1, 8, None)
    frame = rounds.greedy([ROOT])
    tokens = jnp.asarray([[ROOT, *range(4), *range(4, 12)]], jnp.int32)
    offer = Told(tokens, jnp.ones((1, 13), bool), None)
    nothing = Told(jnp.zeros((1, 7), jnp.int32), jnp.arange(7)[None] == 0, None)
    draft = jax.jit(mixture.draft)
    tree, _ = draft((nothing, offer), state, frame)
    assert tree.valid.all()
    found = Told(jnp.full((1, 7), 15, jnp.int32), jnp.ones((1, 7), bool), None)
    tree, _ = draft((found, offer), state, frame)
    assert 0 < int((tree.tokens == 15).sum()) < 8


def test_nodes_go_to_who_is_right_and_come_back():
    """Two chains of which one is right, then the other; the budget has room for one."""
    chain = trees.chain(3)
    mixture = jspec.merge(Telling(chain), Telling(chain), num_speculative_tokens=3)
    state = mixture.init(1, 8, None)
    frame = rounds.greedy([ROOT])
    every = jnp.ones((1, 4), bool)
    params = tuple(Told(jnp.array([[ROOT, t, t, t]], jnp.int32), every, None) for t in (1, 2))
    draft, update = jax.jit(mixture.draft), jax.jit(mixture.update)
    for right in (1, 2, 1):
        for _ in range(60):
            tree, aux = draft(params, state, frame)
            emitted = jnp.full((1, 4), right, jnp.int32)
            lesson = feedback(tree, emitted, jnp.array([4]))
            state = update(params, state, aux, lesson)
        assert (np.asarray(tree.tokens)[0, 1:] == right).all()
        assert float(tree.value[0, 3]) > 0.5


def test_a_row_that_has_ended_teaches_nothing():
    chain = trees.chain(2)
    mixture = jspec.merge(Telling(chain), Telling(chain), num_speculative_tokens=2)
    state = mixture.init(1, 8, None)
    frame = rounds.greedy([ROOT], done=True)
    params = (Told(jnp.array([[ROOT, 1, 1]], jnp.int32), jnp.ones((1, 3), bool), None),) * 2
    tree, aux = jax.jit(mixture.draft)(params, state, frame)
    lesson = feedback(tree, jnp.zeros((1, 3), jnp.int32), jnp.array([0]))
    after = jax.jit(mixture.update)(params, state, aux, lesson)
    np.testing.assert_array_equal(after.acceptance.bias, state.acceptance.bias)


def test_a_cut_tree_is_the_most_worthy_part():
    tree = trees.branching([2, 2]).fill(jnp.arange(7)[None])
    value = jnp.array([[0.5, 0.5, 0.6, 0.5, 0.1, 0.6, 0.2]])
    tree = tree.replace(value=value, valid=tree.valid.at[0, 5].set(False))
    got = trees.best(tree, 3)
    assert got.tokens.tolist() == [[0, 1, 2, 3]]  # of equally worthy ones the parent
    assert got.parents.tolist() == [[-1, 0, 0, 1]]
    got = trees.best(tree, 6)
    assert got.valid.tolist() == [[True, True, True, True, True, False, True]]
    assert isinstance(trees.best(tree, 40), Tree)
    assert trees.best(tree, 40).tokens.shape == (1, 7)


def test_arguments_out_of_range_are_refused():
    recycling, lookup = jspec.TokenRecycling(tiny.VOCAB), jspec.PromptLookup()
    with pytest.raises(ValueError, match="merge got 1 drafter; pass two or more"):
        jspec.merge(recycling, num_speculative_tokens=4)
    with pytest.raises(ValueError, match=r"num_speculative_tokens is 0; pass .* 1 .. 4096"):
        jspec.merge(recycling, lookup, num_speculative_tokens=0)
    with pytest.raises(ValueError, match=r"merge got .*PromptLookup.*; pass instances"):
        jspec.merge(recycling, jspec.PromptLookup)
    mixture = jspec.merge(recycling, lookup, num_speculative_tokens=4)
    with pytest.raises(ValueError, match="drafter_state is a tuple and a merge of 2 with a budget"):
        mixture.init(1, 8, (None, None))
    with pytest.raises(ValueError, match="drafter_params is a tuple of 3 and merge keeps a tuple"):
        mixture.draft_members((None,) * 3, (None, None), None)


def test_a_sampled_distribution_is_refused():
    model = tiny.draft()
    with pytest.raises(jspec.InputError, match="whose draws have a verifier of their own"):
        jspec.merge(
            jspec.SpeculativeDecoding(model, 2, scheme=jspec.schemes.RECURSIVE),
            jspec.PromptLookup(2),
            num_speculative_tokens=3,
        )


def test_unseen_is_the_oracles():
    assert oracle.UNSEEN == BASE_LOG_ODDS
