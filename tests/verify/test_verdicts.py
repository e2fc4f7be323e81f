"""Verifiers of whole paths: each decides as its oracle does, with the same coins and noise."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
import oracle
import pytest
import refusals
import rounds

from jspec.types import Tree
from jspec.verify.block_verification import BlockVerification
from jspec.verify.traversal_verification import TraversalVerification

BATCH, VOCAB = 96, 5
ROWS = rounds.Rows(BATCH)


def near(rng, nodes):
    """Logits of the target at so many nodes, and distributions of the draft near them."""
    logits = (rng.normal(size=(BATCH, nodes, VOCAB)) * 2).astype(np.float32)
    draft = np.exp(logits + rng.normal(size=logits.shape) * 0.7)
    return logits, draft / draft.sum(-1, keepdims=True)


def tree_of(rng, tokens, parents, valid, q, depth, width):
    """The rows of q are in an order of their own."""
    order = rng.permutation(q.shape[1])
    return Tree(
        tokens=tokens, parents=np.broadcast_to(parents, tokens.shape).astype(np.int32),
        valid=valid, q=q[:, np.argsort(order)].astype(np.float32),
        q_row=np.tile(order, (BATCH, 1)).astype(np.int32), depth=depth, width=width,
    )  # fmt: skip


IDS = [0, 1, 2, 4, 5]
"""Nodes of a chain; node 3 is in none, so that ids have a gap."""


def of_chains(seed):
    """Chains of 0 to 4 tokens."""
    rng = np.random.default_rng(seed)
    logits, q = near(rng, 6)
    tokens, valid = np.zeros((BATCH, 6), np.int32), np.zeros((BATCH, 6), bool)
    for row, level in itertools.product(range(BATCH), range(4)):
        tokens[row, IDS[level + 1]] = rng.choice(VOCAB, p=q[row, IDS[level]])
        valid[row, IDS[: row % 5 + 1]] = True
    return tree_of(rng, tokens, [-1, 0, 1, 0, 2, 4], valid, q, 4, 1), logits, q


PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 6])


def of_trees(seed):
    """Draws without replacement, of which rows lack some."""
    rng = np.random.default_rng(seed)
    logits, q = near(rng, 8)
    tokens = np.zeros((BATCH, 8), np.int32)
    for row, node in itertools.product(range(BATCH), range(8)):
        mine = np.flatnonzero(PARENTS == node)
        tokens[row, mine] = rng.choice(VOCAB, len(mine), replace=False, p=q[row, node])
    valid = np.arange(8) <= np.arange(BATCH)[:, None] % 8
    return tree_of(rng, tokens, PARENTS, valid, q, 4, 2), logits, q


def places(tree, row):
    """{prefix: node} of a row's tree, the first node of equal siblings."""
    found = {(): 0}
    for node, path in rounds.paths(tree, row).items():
        found.setdefault(path, node)
    return found


def last_passed(chain, p, q, coins):
    prefixes = [chain[:i] for i in range(len(chain) + 1)]
    tests, _ = oracle.block_probabilities(
        [p[w] for w in prefixes], [q[w] for w in prefixes[:-1]], chain
    )
    passed = np.flatnonzero(coins[: len(chain)] < tests)
    return passed[-1] + 1 if passed.size else 0


def judge_chain(place, p, q, coins):
    """(the prefix that is kept, the distribution of the token behind it)."""
    chain = max(place, key=len)
    kept = last_passed(chain, p, q, coins)
    of_p, of_q = ([one[chain[:i]] for i in range(len(chain) + 1)] for one in (p, q))
    return chain[:kept], oracle.block(np.array(of_p), np.array(of_q[:-1]), chain)[1][kept]


def judge_tree(place, p, q, coins):
    children = {prefix: [] for prefix in place}
    for prefix in place:
        if prefix:
            children[prefix[:-1]].append(prefix[-1])
    tests = oracle.traversal(oracle.tree_of(children.get), p.get, q.get)
    return next((w, left) for w, test, left in tests if coins[place[w]] < test or not w)


@dataclass(frozen=True)
class Judged:
    """A verifier, trees for it, its oracle, its coins, and nodes below which nothing is."""

    verifier: Any
    drafts: Callable
    judge: Callable
    num_coins: int
    last: tuple[int, ...]
    behind: tuple[int, ...]

    @cached_property
    def verdict(self):
        return jax.jit(self.verifier.verdict)


CASES = {
    "block": Judged(BlockVerification(), of_chains, judge_chain, 4, (2,), (4, 5)),
    "traversal": Judged(TraversalVerification(), of_trees, judge_tree, 8, (3,), (6, 7)),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every
def test_a_verifier_decides_as_the_oracle_with_the_same_coins_and_noise(case):
    tree, logits, q = case.drafts(0)
    frame = ROWS.frame()
    verdict = jax.device_get(case.verdict(tree, logits, frame))
    uniforms = rounds.coins(frame, case.num_coins)
    kept, residuals = [], []
    for row in range(BATCH):
        place, temperature = places(tree, row), frame.sampling.temperature[row]
        p = {w: oracle.probabilities(logits[row, n], temperature) for w, n in place.items()}
        prefix, left = case.judge(place, p, {w: q[row, n] for w, n in place.items()}, uniforms[row])
        path = [place[prefix[:i]] for i in range(len(prefix) + 1)]
        assert verdict.path[row].tolist() == path + [0] * (tree.depth + 1 - len(path))
        kept.append(len(prefix))
        residuals.append(left)
    rounds.check_verdict(verdict, frame, kept, residuals)
    assert np.bincount(kept).size == tree.depth + 1, "every length is met"
    assert not verdict.failed.any()


@every
@pytest.mark.parametrize("sampling", [None, ROWS.settings(0)], ids=["greedy", "cold"])
def test_greedy_rows_emit_the_greedy_tokens(case, sampling):
    tree, logits, _ = case.drafts(1)
    verdict = jax.device_get(case.verdict(tree, logits, ROWS.frame(sampling)))
    for row in range(BATCH):
        place, prefix = places(tree, row), ()
        while (longer := (*prefix, int(logits[row, place[prefix]].argmax()))) in place:
            prefix = longer
        assert verdict.path_lengths[row] == len(prefix) + 1
        assert verdict.bonus[row] == longer[-1]


@every
def test_a_node_without_a_distribution_has_nothing_below_it(case):
    """It is judged as if the path ended there; no token is drawn."""
    tree, logits, _ = case.drafts(2)
    broken, gone = logits.copy(), np.isin(np.arange(logits.shape[1]), case.behind)
    broken[:, case.last, 1] = np.nan
    short = tree.replace(valid=tree.valid & ~gone)
    found, expected = jax.device_get(
        [case.verdict(tree, broken, ROWS.frame()), case.verdict(short, logits, ROWS.frame())]
    )
    np.testing.assert_array_equal(found.path, expected.path)
    ends = np.take_along_axis(expected.path, expected.path_lengths[:, None] - 1, 1)[:, 0]
    np.testing.assert_array_equal(found.failed, np.isin(ends, case.last))
    np.testing.assert_array_equal(found.bonus[~found.failed], expected.bonus[~found.failed])
    assert 0 < found.failed.sum() < BATCH
    nothing = case.verdict(tree, np.full_like(logits, -np.inf), ROWS.frame())
    assert nothing.failed.all() and (nothing.path_lengths == 1).all()
    ended = case.verdict(tree, logits * np.nan, ROWS.frame(done=True))
    assert not ended.failed.any() and (ended.path_lengths == 1).all()


def test_unverifiable_trees_are_refused():
    (chain, *_), (tree, *_) = of_chains(0), of_trees(0)

    def refused(verifier, tree, said):
        logits = np.zeros((*tree.tokens.shape, VOCAB), np.float32)
        return lambda: verifier.verdict(tree, logits, ROWS.frame()), said

    needed = "needs the distributions q that the {} drawn"
    refusals.check([
        refused(BlockVerification(), chain.replace(width=2), "chains and a node .* up to 2"),
        refused(BlockVerification(), chain.replace(q=None), needed.format("chain was")),
        refused(TraversalVerification(), tree.replace(q=None), needed.format("children were")),
    ], error=ValueError)  # fmt: skip
