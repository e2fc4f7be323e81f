"""Traversal verification: the oracle by enumeration of all trees, the verifier against it."""

import itertools
from functools import partial

import jax
import numpy as np
import oracle
import pytest
import rounds

from jspec.types import Tree
from jspec.verify.traversal_verification import TraversalVerification

SIZE = 3


def model(rng, zeros=0, near=None):
    """A function of the prefix to a distribution, some with tokens that it never draws."""
    known = {}

    def probs(prefix):
        if prefix not in known:
            masses = rng.dirichlet(np.ones(SIZE))
            masses[rng.permutation(SIZE)[: rng.integers(zeros + 1)]] = 0
            known[prefix] = masses / masses.sum()
            if near is not None:
                known[prefix] = (known[prefix] + near(prefix)) / 2
        return known[prefix]

    return probs


SHAPES = {
    "chain": lambda q, ask: oracle.rsd_c(ask, (1, 1)),
    "two": lambda q, ask: oracle.rsd_c(ask, (2, 2)),
    "all": lambda q, ask: oracle.rsd_c(ask, (3, 1)),
    # Whether a node is there follows from tokens that were drawn elsewhere in the tree.
    "dyspec": lambda q, ask: oracle.dyspec_greedy(q, ask, 4),
    "threshold": lambda q, ask: oracle.dyspec_threshold(q, ask, 0.3, 4),
}


def every_tree(shape, q):
    return oracle.every_tree(
        partial(SHAPES[shape], q), lambda prefix: oracle.draws_swor(q(prefix), SIZE)
    )


def joint(p, num):
    words = itertools.product(range(SIZE), repeat=num)
    return np.reshape([np.prod([p(w[:i])[w[i]] for i in range(num)]) for w in words], [SIZE] * num)


def error(distribution, trees, p, q):
    found = sum(weight * distribution(tree, p, q, 3) for tree, weight in trees)
    return np.abs(found - joint(p, 3)).max()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_oracle_is_lossless(shape):
    for seed, zeros in itertools.product(range(2), (0, 1)):
        rng = np.random.default_rng([seed, zeros])
        p, q = model(rng, zeros), model(rng, zeros)
        assert error(oracle.traversal_distribution, every_tree(shape, q), p, q) < 1e-12


def test_wrong_variants_are_caught():
    rng = np.random.default_rng(0)
    p, q = model(rng), model(rng)
    # Children that were drawn without replacement, judged as if they were independent.
    wrong = partial(oracle.traversal_distribution, without_replacement=False)
    assert error(wrong, every_tree("two", q), p, q) > 0.02

    def cut(tree, *rest):
        """Without the children that are token 0: whether they are there tells what they are."""
        children = oracle.children_of(tree)
        left = oracle.tree_of(lambda prefix: [x for x in children.get(prefix, ()) if x])
        return oracle.traversal_distribution(left, *rest)

    assert error(cut, every_tree("two", q), p, q) > 0.02


def test_more_is_kept_than_from_the_root_downwards():
    def downwards(tree, p, q):
        children = oracle.children_of(tree)

        def below(prefix):
            drawn, left, kept = children.get(prefix, []), 1.0, 0.0
            accept, _ = oracle.recursive(p(prefix), q(prefix), drawn)
            for token, probability in zip(drawn, accept, strict=True):
                kept += left * probability * (1 + below((*prefix, token)))
                left *= 1 - probability
            return kept

        return below(())

    gains = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        p = model(rng)
        q = model(rng, near=p)
        for shape in ("chain", "two", "dyspec"):
            every = every_tree(shape, q)
            ours, theirs = (
                sum(weight * (1 + kept(tree, p, q)) for tree, weight in every)
                for kept in (oracle.traversal_kept, downwards)
            )
            gains.append(ours / theirs)
    print(f"{np.mean(gains):.3f} times the tokens, {min(gains):.3f} to {max(gains):.3f}")
    assert np.mean(gains) > 1.01 and min(gains) > 0.99


def test_of_a_chain_it_is_block_verification():
    rng = np.random.default_rng(3)
    p, q = model(rng), model(rng)
    for tokens in itertools.product(range(SIZE), repeat=3):
        below = [tokens[:i] for i in range(4)]
        chain = oracle.tree_of({w: tokens[len(w) : len(w) + 1] for w in below}.__getitem__)
        probabilities, _ = oracle.block_probabilities(
            [p(w) for w in below], [q(w) for w in below], tokens
        )
        tests = {
            len(prefix): probability for prefix, probability, _ in oracle.traversal(chain, p, q)
        }
        np.testing.assert_allclose([tests[i + 1] for i in range(3)], probabilities, atol=1e-12)


# ---- the verifier --------------------------------------------------------------------------------

BATCH, VOCAB, NODES = 96, 5, 8
ROWS = rounds.Rows(BATCH)
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 6])
DEPTH, WIDTH = 4, 2
VERDICT = jax.jit(TraversalVerification().verdict)


def drafts(seed):
    """(tree, logits, q): draws without replacement near the target's, of which rows lack some."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(BATCH, NODES, VOCAB)) * 2).astype(np.float32)
    near = np.exp(logits + rng.normal(size=logits.shape) * 0.7)
    q = near / near.sum(-1, keepdims=True)
    tokens = np.zeros((BATCH, NODES), np.int32)
    for row, node in itertools.product(range(BATCH), range(NODES)):
        mine = np.flatnonzero(PARENTS == node)
        tokens[row, mine] = rng.choice(VOCAB, len(mine), replace=False, p=q[row, node])
    valid = np.arange(NODES) <= np.arange(BATCH)[:, None] % NODES
    order = rng.permutation(NODES)
    tree = Tree(
        tokens=tokens,
        parents=np.tile(PARENTS, (BATCH, 1)).astype(np.int32),
        valid=valid,
        q=q[:, np.argsort(order)].astype(np.float32),
        q_row=np.tile(order, (BATCH, 1)).astype(np.int32),
        depth=DEPTH,
        width=WIDTH,
    )
    return tree, logits, q


def nodes_of(tree, row):
    """{prefix: node} of a row's tree, and the tree as the oracle has it."""
    place = {(): 0} | {path: node for node, path in rounds.paths(tree, row).items()}
    children = {prefix: [] for prefix in place}
    for prefix in place:
        if prefix:
            children[prefix[:-1]].append(prefix[-1])
    return place, oracle.tree_of(children.__getitem__)


def test_the_verifier_decides_as_the_oracle_with_the_same_coins_and_noise():
    tree, logits, q = drafts(0)
    frame = ROWS.frame()
    verdict = jax.device_get(VERDICT(tree, logits, frame))
    uniforms = rounds.coins(frame, NODES)
    kept, residuals = [], []
    for row in range(BATCH):
        place, plain = nodes_of(tree, row)
        temperature = frame.sampling.temperature[row]
        of_p = {w: oracle.probabilities(logits[row, n], temperature) for w, n in place.items()}
        of_q = {w: q[row, n] for w, n in place.items()}
        tests = oracle.traversal(plain, of_p.__getitem__, of_q.__getitem__)
        prefix, _, residual = next(
            test for test in tests if uniforms[row, place[test[0]]] < test[1] or test[0] == ()
        )
        path = [place[prefix[:i]] for i in range(len(prefix) + 1)]
        assert verdict.path[row].tolist() == path + [0] * (DEPTH + 1 - len(path))
        kept.append(len(prefix))
        residuals.append(residual)
    rounds.check_verdict(verdict, frame, kept, residuals)
    assert np.bincount(kept).size == DEPTH + 1
    assert not verdict.failed.any()


@pytest.mark.parametrize("sampling", [None, ROWS.settings(0)], ids=["greedy", "cold"])
def test_greedy_rows_emit_the_greedy_tokens(sampling):
    tree, logits, _ = drafts(1)
    verdict = jax.device_get(VERDICT(tree, logits, ROWS.frame(sampling)))
    for row in range(BATCH):
        place, _ = nodes_of(tree, row)
        prefix = ()
        while (longer := (*prefix, int(logits[row, place[prefix]].argmax()))) in place:
            prefix = longer
        assert verdict.path_lengths[row] == len(prefix) + 1
        assert verdict.bonus[row] == longer[-1]


def test_a_node_without_a_distribution_has_nothing_below_it():
    tree, logits, _ = drafts(2)
    broken = logits.copy()
    broken[:, 3, 1] = np.nan
    short = tree.replace(valid=tree.valid & (np.arange(NODES) < 6))
    found, expected = jax.device_get(
        [VERDICT(tree, broken, ROWS.frame()), VERDICT(short, logits, ROWS.frame())]
    )
    np.testing.assert_array_equal(found.path, expected.path)
    np.testing.assert_array_equal(found.failed, expected.path[:, 2] == 3)
    np.testing.assert_array_equal(found.bonus[~found.failed], expected.bonus[~found.failed])
    assert 0 < found.failed.sum() < BATCH
    nothing = VERDICT(tree, np.full_like(logits, -np.inf), ROWS.frame())
    assert nothing.failed.all() and (nothing.path_lengths == 1).all()
    ended = VERDICT(tree, logits * np.nan, ROWS.frame(done=True))
    assert not ended.failed.any() and (ended.path_lengths == 1).all()


def test_unverifiable_trees_are_refused():
    tree, logits, _ = drafts(0)
    with pytest.raises(ValueError, match="needs the distributions q that the children were drawn"):
        TraversalVerification().verdict(tree.replace(q=None), logits, ROWS.frame())
