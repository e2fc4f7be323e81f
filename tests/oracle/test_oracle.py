"""Oracles that nothing else is behind: filters of a distribution, and greedy decoding, by hand."""

import numpy as np
import pytest

import oracle


def logs(*masses):
    with np.errstate(divide="ignore"):
        return np.log(np.array(masses, dtype=np.float64))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.4, 0.3, 0.2]),
        ({"temperature": 0}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, np.array([1, 16, 9, 4]) / 30),
        ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_k": 9}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_p": 0.69}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.71}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"top_p": 0}, [0, 1, 0, 0]),
        ({"min_p": 0.7}, [0, 4 / 7, 3 / 7, 0]),
        ({"min_p": 1}, [0, 1, 0, 0]),
        # 0.4 of all is too little for 0.55, but 4/7 of what top-k leaves is enough
        ({"top_k": 2, "top_p": 0.55}, [0, 1, 0, 0]),
        # 16/30 reaches 0.5 only after the temperature
        ({"temperature": 0.5, "top_p": 0.5}, [0, 1, 0, 0]),
        # 9/16 fails 0.6 only after the temperature
        ({"temperature": 0.5, "min_p": 0.6}, [0, 1, 0, 0]),
    ],
)
def test_each_filter_and_their_order(settings, expected):
    probs = oracle.probabilities(logs(0.1, 0.4, 0.3, 0.2), **settings)
    np.testing.assert_allclose(probs, expected, atol=1e-15)


def cycle(tokens, vocab=5):
    """After t comes t + 1, round and round; the second best is t + 2, and so on."""
    return -((np.arange(vocab) - tokens[-1] - 1) % vocab).astype(float)


def test_greedy_ends_with_an_end_token_or_at_the_limit():
    assert oracle.greedy(cycle, [1], 7) == [2, 3, 4, 0, 1, 2, 3]
    assert oracle.greedy(cycle, [1], 7, eos={0, 4}) == [2, 3, 4]
    assert oracle.greedy(cycle, [1], 2, eos={4}) == [2, 3]
    assert oracle.greedy(cycle, [1], 0) == []
