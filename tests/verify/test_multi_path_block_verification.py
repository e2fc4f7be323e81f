"""Multi-path block verification: the oracle by enumeration of all chains; then the verifier."""

import itertools
from functools import partial

import jax
import numpy as np
import oracle
import pytest
import rounds

import jspec
from jspec.types import Tree
from jspec.verify.block_verification import BlockVerification
from jspec.verify.multi_path_block_verification import MultiPathBlockVerification

SIZE, LENGTH = 3, 2


def tables(seed, zeros=0):
    """(p, q): from the tokens so far to a distribution; some tokens are never drawn."""
    rng = np.random.default_rng([seed, zeros])
    prefixes = [w for n in range(LENGTH + 1) for w in itertools.product(range(SIZE), repeat=n)]

    def probs():
        masses = rng.dirichlet(np.ones(SIZE))
        masses[rng.permutation(SIZE)[: rng.integers(zeros + 1)]] = 0
        return masses / masses.sum()

    return ({prefix: probs() for prefix in prefixes} for _ in range(2))


def joint(p):
    words = itertools.product(range(SIZE), repeat=LENGTH + 1)
    masses = [np.prod([p[w[:i]][w[i]] for i in range(LENGTH + 1)]) for w in words]
    return np.reshape(masses, [SIZE] * (LENGTH + 1))


def error(verify, p, q, chains):
    found = oracle.multi_path_distribution(verify, p, q, LENGTH, chains)
    return np.abs(found - joint(p)).max()


@pytest.mark.parametrize("chains", [1, 2, 3])
def test_the_oracle_is_lossless(chains):
    for seed, zeros in ((0, 0), (1, 1), (2, 2)):
        p, q = tables(seed, zeros)
        assert error(oracle.multi_path_block, p, q, chains) < 1e-12


def test_wrong_variants_are_caught():
    p, q = tables(0)
    # The chain that was chosen, judged as if it had been drawn alone, or as the best of fewer.
    assert error(partial(oracle.multi_path_block, skewed=q), p, q, 2) > 0.02
    fewer = oracle.of_the_last(p, q, LENGTH, 2)
    assert error(partial(oracle.multi_path_block, skewed=fewer), p, q, 3) > 0.01

    # Judged lossless alone, but the coin of which chain it is follows from what it says.
    def the_longest_kept(p, q, drawn):
        alike = [oracle.multi_path_block(p, q, [chain]) for chain in drawn]
        return max(alike, key=lambda one: one[0] @ np.arange(LENGTH + 1))

    assert error(the_longest_kept, p, q, 2) > 0.02


def test_a_second_chain_keeps_more_on_average():
    """Not of every pair: the last of two may come from what the target likes less than one does."""
    gains = []
    for seed in range(12):
        p, far = tables(seed)
        q = {prefix: (p[prefix] + far[prefix]) / 2 for prefix in p}
        one, two = (
            oracle.multi_path_kept(oracle.multi_path_block, p, q, LENGTH, chains)
            for chains in (1, 2)
        )
        block = oracle.expected_kept(oracle.block, p, q, LENGTH)
        assert one == pytest.approx(block, abs=1e-12)
        gains.append(two - one)
    print(f"{np.mean(gains):.3f} tokens more for a second chain, {min(gains):.3f} at least")
    assert np.mean(gains) > 0.05


# ---- the verifier --------------------------------------------------------------------------------

BATCH, VOCAB, CHAINS, DEPTH = 96, 5, 3, 3
ROWS = rounds.Rows(BATCH)
NODES = 1 + CHAINS * DEPTH
VERIFIER = MultiPathBlockVerification(CHAINS)
VERDICT = jax.jit(VERIFIER.verdict)


def drafts(seed):
    """(tree, logits, q, chains): independent chains as SpecTr has them, q near the target's p.

    What follows hangs from the first of the chains that begin alike, where the distributions are.
    """
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(BATCH, NODES, VOCAB)) * 2).astype(np.float32)
    near = np.exp(logits + rng.normal(size=logits.shape) * 0.7)
    q = near / near.sum(-1, keepdims=True)
    tokens = np.zeros((BATCH, NODES), np.int32)
    parents = np.full((BATCH, NODES), -1, np.int32)
    drawn = np.zeros((BATCH, CHAINS, DEPTH), np.int32)
    for row in range(BATCH):
        first = {(): 0}
        for level, chain in itertools.product(range(DEPTH), range(CHAINS)):
            above = first[tuple(drawn[row, chain, :level])]
            node = 1 + level * CHAINS + chain
            drawn[row, chain, level] = tokens[row, node] = rng.choice(VOCAB, p=q[row, above])
            parents[row, node] = above
            first.setdefault(tuple(drawn[row, chain, : level + 1]), node)
    order = rng.permutation(NODES)
    tree = Tree(
        tokens=tokens,
        parents=parents,
        valid=np.ones((BATCH, NODES), bool),
        q=q[:, np.argsort(order)].astype(np.float32),
        q_row=np.tile(order, (BATCH, 1)).astype(np.int32),
        depth=DEPTH,
        width=CHAINS,
    )
    return tree, logits, q, drawn


def places(tree, row):
    """{prefix: node} of a row's tree, the first node of equal siblings."""
    found = {(): 0}
    for node, path in rounds.paths(tree, row).items():
        found.setdefault(path, node)
    return found


def test_the_verifier_decides_as_the_oracle_with_the_same_coins_and_noise():
    tree, logits, q, drawn = drafts(0)
    frame = ROWS.frame()
    verdict = jax.device_get(VERDICT(tree, logits, frame))
    uniforms = rounds.coins(frame, DEPTH)
    kept, residuals = [], []
    for row in range(BATCH):
        place, temperature = places(tree, row), frame.sampling.temperature[row]
        # Of prefixes that are not in the tree only their distributions' sums are needed.
        words = [w for n in range(DEPTH + 1) for w in itertools.product(range(VOCAB), repeat=n)]
        even = np.full(VOCAB, 1 / VOCAB)
        p = dict.fromkeys(words, even)
        of_q = dict.fromkeys(words, even)
        p |= {w: oracle.probabilities(logits[row, n], temperature) for w, n in place.items()}
        of_q |= {w: q[row, n] for w, n in place.items()}
        stops, left, best = oracle.multi_path_block(p, of_q, list(map(tuple, drawn[row].tolist())))
        skewed = oracle.of_the_last(p, of_q, DEPTH, CHAINS)
        tests, _ = oracle.block_probabilities(
            [p[best[:i]] for i in range(DEPTH + 1)], [skewed[best[:i]] for i in range(DEPTH)], best
        )
        np.testing.assert_allclose(oracle.last_passed(tests), stops)
        passed = np.flatnonzero(uniforms[row] < tests)
        kept.append(passed[-1] + 1 if passed.size else 0)
        residuals.append(left[kept[-1]])
        path = [place[best[:i]] for i in range(kept[-1] + 1)]
        assert verdict.path[row].tolist() == path + [0] * (DEPTH + 1 - len(path))
    rounds.check_verdict(verdict, frame, kept, residuals)
    assert np.bincount(kept).size == DEPTH + 1
    assert not verdict.failed.any()


@pytest.mark.parametrize("sampling", [None, ROWS.settings(0)], ids=["greedy", "cold"])
def test_greedy_rows_emit_the_greedy_tokens(sampling):
    tree, logits, *_ = drafts(1)
    verdict = jax.device_get(VERDICT(tree, logits, ROWS.frame(sampling)))
    for row in range(BATCH):
        place, prefix = places(tree, row), ()
        while (longer := (*prefix, int(logits[row, place[prefix]].argmax()))) in place:
            prefix = longer
        assert verdict.path_lengths[row] == len(prefix) + 1
        assert verdict.bonus[row] == longer[-1]


def test_of_one_chain_it_is_block_verification():
    tree, logits, *_ = drafts(2)
    first = np.arange(0, NODES, CHAINS)  # any chain of nodes: what hangs where is all that counts
    chain = tree.replace(
        tokens=tree.tokens[:, first], parents=np.tile(np.arange(-1, DEPTH), (BATCH, 1)),
        valid=tree.valid[:, first], q_row=tree.q_row[:, first], width=1,
    )  # fmt: skip
    ours, theirs = (
        jax.device_get(jax.jit(one.verdict)(chain, logits[:, first], ROWS.frame()))
        for one in (MultiPathBlockVerification(1), BlockVerification())
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_node_without_a_distribution_ends_the_chain():
    tree, logits, *_ = drafts(3)
    broken = logits.copy()
    broken[:, 1 + CHAINS : 1 + 2 * CHAINS, 1] = np.nan
    short = tree.replace(valid=tree.valid & (np.arange(NODES) < 1 + 2 * CHAINS))
    found, expected = jax.device_get(
        [VERDICT(tree, broken, ROWS.frame()), VERDICT(short, logits, ROWS.frame())]
    )
    np.testing.assert_array_equal(found.path, expected.path)
    np.testing.assert_array_equal(found.failed, expected.path_lengths == 3)
    np.testing.assert_array_equal(found.bonus[~found.failed], expected.bonus[~found.failed])
    assert 0 < found.failed.sum() < BATCH
    ended = VERDICT(tree, logits * np.nan, ROWS.frame(done=True))
    assert not ended.failed.any() and (ended.path_lengths == 1).all()


def test_unverifiable_trees_are_refused():
    tree, logits, *_ = drafts(0)
    with pytest.raises(ValueError, match="num_chains is 2 and a node of this tree has up to 3"):
        MultiPathBlockVerification(2).verdict(tree, logits, ROWS.frame())
    with pytest.raises(ValueError, match="needs the distributions q that the chains were drawn"):
        VERIFIER.verdict(tree.replace(q=None), logits, ROWS.frame())
    with pytest.raises(ValueError, match="num_chains is 0"):
        jspec.MultiPathBlockVerification(0)
