"""Verification of whole paths by enumeration of all that may be drawn; the oracles too."""

import itertools
from functools import partial

import jax
import numpy as np
import oracle
import pytest
import tables

from jspec.verify.block_verification import acceptance

SIZE, LENGTH = 3, 3
ACCEPTANCE = jax.jit(acceptance)


def pairs(seed, num):
    """(p, q): dictionaries from prefix to distribution; whole, with zeros, filtered, equal."""
    rng = np.random.default_rng(seed)
    prefixes = [w for n in range(LENGTH + 1) for w in itertools.product(range(SIZE), repeat=n)]

    def probs(zeros):
        masses = rng.dirichlet(np.ones(SIZE))
        masses[rng.permutation(SIZE)[: rng.integers(zeros + 1)]] = 0
        return masses / masses.sum()

    for zeros in itertools.product(range(SIZE), repeat=2):
        for _ in range(num):
            p, q = ({prefix: probs(most) for prefix in prefixes} for most in zeros)
            yield p, q
            # The draft's distributions are the target's after half of the prefixes.
            yield p, {prefix: p[prefix] if rng.integers(2) else q[prefix] for prefix in prefixes}


def verify(p, q, tokens, dtype=np.float64):
    """(stops, residuals) as the oracle's verifiers give them, from jspec's probabilities."""
    with jax.enable_x64(dtype == np.float64):
        accept, residual = ACCEPTANCE(
            p.astype(dtype), q.astype(dtype), np.array(tokens, np.int32), np.int32(len(tokens))
        )
    assert accept.dtype == residual.dtype == dtype
    assert np.isfinite(accept).all() and np.isfinite(residual).all()
    return oracle.last_passed(np.asarray(accept, np.float64)), np.asarray(residual, np.float64)


def in_float32(p, q, tokens):
    return verify(p, q, tokens, dtype=np.float32)


def error(method, p, q, num):
    found = oracle.chain_distribution(method, p, q, num)
    return np.abs(found - tables.joint(p.__getitem__, SIZE, num + 1)).max()


def test_the_example_of_the_paper():
    """Sun et al. 2024, section 2: tokens kept of two, 10/9 one by one and 11/9 as a block."""
    prefixes = [w for n in range(3) for w in itertools.product(range(2), repeat=n)]
    p = {prefix: np.array([1, 2]) / 3 for prefix in prefixes}
    q = {prefix: np.array([2, 1]) / 3 for prefix in prefixes}
    assert oracle.expected_kept(oracle.token_by_token, p, q, 2) == pytest.approx(10 / 9, abs=1e-12)
    assert oracle.expected_kept(oracle.block, p, q, 2) == pytest.approx(11 / 9, abs=1e-12)
    assert oracle.expected_kept(verify, p, q, 2) == pytest.approx(11 / 9, abs=1e-12)


def test_the_emitted_tokens_have_the_targets_joint_distribution():
    for num in [0, 1, 2, 3]:
        for p, q in pairs(num, 1):
            assert error(verify, p, q, num) < 1e-12
    for p, q in pairs(0, 1):  # some ten roundings per token, 6e-8 each, of four tokens
        assert error(in_float32, p, q, 3) < 2.4e-6


def test_acceptance_is_the_oracles():
    """Residuals as far as they are drawn from."""
    for p, q in pairs(5, 1):
        for tokens, _, target, draft in oracle.chains(p, q, LENGTH):
            stops, residuals = oracle.block(target, draft, tokens)
            found_stops, found_residuals = verify(target, draft, tokens)
            assert np.abs(found_stops - stops).max() < 1e-12
            assert np.abs(stops[:, None] * (found_residuals - residuals)).max() < 1e-12


def without_the_ratio(p, q, tokens):
    """The residual norm[p - q]^+ of token-by-token verification."""
    return verify(p, q, tokens)[0], oracle.token_by_token(p, q, tokens)[1]


def first_failed(p, q, tokens):
    """The tests one after the other, up to the first that fails."""
    probabilities, _ = oracle.block_probabilities(p, q, tokens)
    passed = np.cumprod([1, *probabilities])
    return passed - [*passed[1:], 0], verify(p, q, tokens)[1]


@pytest.mark.parametrize(
    ("method", "size"), [(verify, 0), (without_the_ratio, 0.083), (first_failed, 0.167)]
)
def test_wrong_residuals_and_wrong_stops_are_caught(method, size):
    p, q = (
        {
            w: distributions[len(w)]
            for n in range(3)
            for w in itertools.product(range(SIZE), repeat=n)
        }
        for distributions in (
            np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [1, 0, 0]]),
            np.array([[1, 0, 0], [0.75, 0, 0.25], [1, 0, 0]]),
        )
    )
    assert error(method, p, q, 2) == pytest.approx(size, abs=5e-4)


def model_of(rng, zeros=0):
    """A function of the prefix to a distribution, some with tokens that it never draws."""
    known = {}

    def probs(prefix):
        if prefix not in known:
            masses = rng.dirichlet(np.ones(SIZE))
            masses[rng.permutation(SIZE)[: rng.integers(zeros + 1)]] = 0
            known[prefix] = masses / masses.sum()
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


def error_of_trees(distribution, trees, p, q):
    found = sum(weight * distribution(tree, p, q, 3) for tree, weight in trees)
    return np.abs(found - tables.joint(p, SIZE, 3)).max()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_oracle_of_trees_is_lossless(shape):
    for seed, zeros in itertools.product(range(2), (0, 1)):
        rng = np.random.default_rng([seed, zeros])
        p, q = model_of(rng, zeros), model_of(rng, zeros)
        assert error_of_trees(oracle.traversal_distribution, every_tree(shape, q), p, q) < 1e-12


def test_wrong_variants_of_trees_are_caught():
    rng = np.random.default_rng(0)
    p, q = model_of(rng), model_of(rng)
    # Children that were drawn without replacement, judged as if they were independent.
    wrong = partial(oracle.traversal_distribution, without_replacement=False)
    assert error_of_trees(wrong, every_tree("two", q), p, q) > 0.02

    def cut(tree, *rest):
        """Without the children that are token 0: whether they are there tells what they are."""
        children = oracle.children_of(tree)
        left = oracle.tree_of(lambda prefix: [x for x in children.get(prefix, ()) if x])
        return oracle.traversal_distribution(left, *rest)

    assert error_of_trees(cut, every_tree("two", q), p, q) > 0.02
