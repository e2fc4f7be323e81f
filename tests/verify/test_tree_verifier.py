from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import rounds

from jspec.types import Tree
from jspec.verify import rules
from jspec.verify.tree_verifier import TreeVerifier, _where_tokens_match

VOCAB = 6
# Nodes 1 and 2 under the root, 3 and 4 under 2, 5 under 4; node 1 is absent.
TREE = Tree(
    tokens=jnp.array([[0, 3, 3, 1, 2, 5]]), parents=jnp.array([[-1, 0, 0, 2, 2, 4]]),
    valid=jnp.array([[True, False, True, True, True, True]]), depth=3, width=2,
)  # fmt: skip


def frame(**changes):
    return rounds.greedy([0], 7).replace(**changes)


def logits(*choices):
    """The target's logits when node i's argmax is choices[i]."""
    return jnp.asarray(np.eye(VOCAB)[None, list(choices)] * 5, jnp.float32)


@partial(jax.jit, static_argnums=0)
def verdict_of(rule, tree, scores, frame):
    return TreeVerifier(rule).verdict(tree, scores, frame)


def walk(scores, rule=rules.coupled, tree=TREE, **changes):
    verdict = verdict_of(rule, tree, scores, frame(**changes))
    count = int(verdict.path_lengths[0])
    return verdict.path[0, :count].tolist(), int(verdict.bonus[0]), bool(verdict.failed[0])


def test_greedy_descends_while_the_argmax_was_drafted():
    assert walk(logits(3, 0, 2, 0, 5, 4)) == ([0, 2, 4, 5], 4, False)
    assert walk(logits(3, 0, 2, 0, 1, 4)) == ([0, 2, 4], 1, False)
    assert walk(logits(3, 0, 4, 0, 5, 4)) == ([0, 2], 4, False)
    assert walk(logits(2, 0, 2, 0, 5, 4)) == ([0], 2, False)
    verdict = verdict_of(rules.coupled, TREE, logits(3, 0, 4, 0, 5, 4), frame())
    assert verdict.path.tolist() == [[0, 2, 0, 0]]


def test_nan_ends_its_own_path_alone():
    scores = logits(3, 0, 2, 0, 5, 4)
    assert walk(scores.at[0, 4, 1].set(jnp.nan))[0::2] == ([0, 2, 4], True)
    # A node that the walk does not reach may say what it likes.
    assert walk(scores.at[0, 3].set(jnp.nan)) == ([0, 2, 4, 5], 4, False)
    assert walk(scores.at[0, 0, 1].set(-jnp.inf)) == ([0, 2, 4, 5], 4, False)
    assert walk(jnp.full_like(scores, -jnp.inf))[0::2] == ([0], True)
    # A row that has ended is not walked.
    assert not walk(jnp.full_like(scores, jnp.nan), done=jnp.array([True]))[2]


def test_the_rule_gets_the_distribution_that_the_children_were_drawn_from():
    """q_row says which row of q belongs to a node."""
    seen = []

    def spy(p, q, children, valid, noise):
        jax.debug.callback(lambda row: seen.append(float(row)), q[0])
        return rules.deterministic_proposal(p, None, children, valid, noise)

    q = jnp.arange(3.0)[None, :, None] * jnp.ones((1, 3, VOCAB))
    tree = TREE.replace(q=q, q_row=jnp.array([[2, 0, 0, 0, 1, 0]]))
    assert walk(logits(3, 0, 2, 0, 5, 4), spy, tree)[0] == [0, 2, 4, 5]
    jax.effects_barrier()
    assert seen == [2, 0, 1, 0]


def test_a_row_draws_by_its_key_and_position_alone():
    rows = rounds.Rows(3)
    scores = np.random.default_rng(0).normal(size=(3, 6, VOCAB)).astype(np.float32)
    trees = jax.tree.map(lambda leaf: jnp.repeat(leaf, 3, axis=0), TREE)
    whole = trees, jnp.asarray(scores), rows.frame(rows.settings(1))
    together = verdict_of(rules.deterministic_proposal, *whole)
    for row in range(3):
        part = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], whole)
        alone = verdict_of(rules.deterministic_proposal, *part)
        assert alone.path[0].tolist() == together.path[row].tolist()
        assert alone.bonus[0] == together.bonus[row]


def test_greedy_verdicts_of_all_nodes_at_once_are_those_of_a_walk():
    """Trees with absent nodes, equal siblings, undeclared children and levels, and NaN logits."""
    rng = np.random.default_rng(1)
    walked = jax.jit(TreeVerifier(rules.coupled)._walk)
    at_once = jax.jit(_where_tokens_match)
    longest = 0
    for _ in range(60):
        parents = np.array(
            [[-1, *(int(rng.integers(max(i - 3, 0), i)) for i in range(1, 12))] for _ in range(3)]
        )
        tree = Tree(
            tokens=jnp.asarray(rng.integers(0, 2, (3, 12))), parents=jnp.asarray(parents),
            valid=jnp.asarray(rng.random((3, 12)) < 0.9).at[:, 0].set(True), depth=4, width=2,
        )  # fmt: skip
        scores = np.asarray(rng.normal(size=(3, 12, 2)), np.float32)
        scores[rng.random((3, 12)) < 0.05] = np.nan
        now = rounds.greedy([0] * 3, range(3), rng.random(3) < 0.1)
        one, other = walked(tree, scores, now), at_once(tree, scores, now)
        for wanted, found in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(found, wanted)
        longest = max(longest, int(one.path_lengths.max()))
    assert longest == 5
