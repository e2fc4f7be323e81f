"""Traversal verification: the oracle by enumeration of all trees, the verifier against it."""

import itertools
from functools import partial

import numpy as np
import oracle
import pytest
import tables

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


def error(distribution, trees, p, q):
    found = sum(weight * distribution(tree, p, q, 3) for tree, weight in trees)
    return np.abs(found - tables.joint(p, SIZE, 3)).max()


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
