"""Multi-path block verification: the oracle by enumeration of all chains; then the verifier."""

import itertools
from functools import partial

import numpy as np
import oracle
import pytest
import tables

SIZE, LENGTH = 3, 2


def pair(seed, zeros=0):
    """(p, q): from the tokens so far to a distribution; some tokens are never drawn."""
    rng = np.random.default_rng([seed, zeros])
    prefixes = [w for n in range(LENGTH + 1) for w in itertools.product(range(SIZE), repeat=n)]

    def probs():
        masses = rng.dirichlet(np.ones(SIZE))
        masses[rng.permutation(SIZE)[: rng.integers(zeros + 1)]] = 0
        return masses / masses.sum()

    return ({prefix: probs() for prefix in prefixes} for _ in range(2))


def error(verify, p, q, chains):
    found = oracle.multi_path_distribution(verify, p, q, LENGTH, chains)
    return np.abs(found - tables.joint(p.__getitem__, SIZE, LENGTH + 1)).max()


@pytest.mark.parametrize("chains", [1, 2, 3])
def test_the_oracle_is_lossless(chains):
    for seed, zeros in ((0, 0), (1, 1), (2, 2)):
        p, q = pair(seed, zeros)
        assert error(oracle.multi_path_block, p, q, chains) < 1e-12


def test_wrong_variants_are_caught():
    p, q = pair(0)
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
        p, far = pair(seed)
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
