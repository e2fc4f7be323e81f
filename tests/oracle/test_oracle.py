"""The oracle itself: hand-worked cases, exact sums over all draws, and errors it must catch."""

import numpy as np
import pytest

import oracle

# ---- sampling ------------------------------------------------------------------------------------


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


# ---- greedy decoding -----------------------------------------------------------------------------


def cycle(tokens, vocab=5):
    """After t comes t + 1, round and round; the second best is t + 2, and so on."""
    return -((np.arange(vocab) - tokens[-1] - 1) % vocab).astype(float)


def test_greedy_ends_with_an_end_token_or_at_the_limit():
    assert oracle.greedy(cycle, [1], 7) == [2, 3, 4, 0, 1, 2, 3]
    assert oracle.greedy(cycle, [1], 7, eos={0, 4}) == [2, 3, 4]
    assert oracle.greedy(cycle, [1], 2, eos={4}) == [2, 3]
    assert oracle.greedy(cycle, [1], 0) == []


# ---- Token Recycling -----------------------------------------------------------------------------


# ---- prompt lookup -------------------------------------------------------------------------------


# ---- rules: verify/test_rules.py finds them lossless, and equal to those of the package ----------


def distributions(count, seed=0):
    """Pairs (p, q) on 3 or 4 tokens: with zeros, disjoint, equal, one-hot, and a sure draft."""
    rng = np.random.default_rng(seed)
    pairs = [
        (np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.0, 0.0, 0.3, 0.7])),
        (np.array([0.2, 0.3, 0.5]), np.array([0.2, 0.3, 0.5])),
        (np.array([0.0, 1.0, 0.0]), np.array([0.5, 0.2, 0.3])),
        (np.array([0.5, 0.2, 0.3]), np.array([0.0, 1.0, 0.0])),
    ]
    for _ in range(count):
        vocab = rng.integers(3, 5)
        pair = rng.dirichlet(np.ones(vocab) / 2, size=2)
        pair[rng.uniform(size=pair.shape) < 0.25] = 0
        pair[np.arange(2), rng.integers(vocab, size=2)] += 0.1
        p, q = pair / pair.sum(axis=1, keepdims=True)
        pairs.append((p, q))
    return pairs


def error(rule, p, q, draws):
    return np.abs(oracle.emitted_probs(rule, p, q, draws) - p).max()


def test_no_rule_beats_optimal_transport():
    for p, q in distributions(40):
        for num in (1, 2, 3):
            best = oracle.optimal_acceptance(p, q, num) + 1e-12
            assert oracle.acceptance(oracle.multi_round, p, q, oracle.draws_iid(q, num)) <= best
            k_seq = oracle.acceptance(oracle.k_seq, p, q, oracle.draws_iid(q, num))
            assert k_seq <= best
            assert k_seq >= (1 - (1 - 1 / num) ** num) * best - 1e-9  # SpecTr, Theorem 2


# ---- negative controls: what is wrong must show; verify/test_rules.py has the others -------------


def changed(draws, change):
    """The draws after `change` has dropped some of the children."""
    return [(tuple(change(children)), weight) for children, weight in draws]


# Where refusing one child leaves the residual on one token, most mistakes cancel; not so here.
P, Q = np.array([0.2, 0.4, 0.4]), np.array([0.6, 0.3, 0.1])


def test_children_dropped_for_their_own_probability_are_caught():
    """A sibling may exist because of earlier ones, never of itself (DySpec, errata)."""

    def by_itself(children):
        return [child for child in children if Q[child] >= 0.2]

    def by_those_before(children):
        return [c for i, c in enumerate(children) if 1 - sum(Q[list(children[:i])]) >= 0.5]

    draws = oracle.draws_swor(Q, 3)
    assert {len(children) for children, _ in changed(draws, by_those_before)} == {1, 2, 3}
    assert error(oracle.recursive, P, Q, changed(draws, by_those_before)) < 1e-12
    assert error(oracle.recursive, P, Q, changed(draws, by_itself)) > 0.05
