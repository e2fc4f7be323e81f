"""Block verification by enumeration of all chains; then the verifier against the oracle."""

import itertools

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


def verify(p, q, tokens, length=None, dtype=np.float64):
    """(stops, residuals) as the oracle's verifiers give them, from jspec's probabilities."""
    length = len(tokens) if length is None else length
    with jax.enable_x64(dtype == np.float64):
        accept, residual = ACCEPTANCE(
            p.astype(dtype), q.astype(dtype), np.array(tokens, np.int32), np.int32(length)
        )
    assert accept.dtype == residual.dtype == dtype
    assert np.isfinite(accept).all() and np.isfinite(residual).all()
    return oracle.last_passed(np.asarray(accept, np.float64)), np.asarray(residual, np.float64)


def in_float32(p, q, tokens):
    return verify(p, q, tokens, dtype=np.float32)


def error(method, p, q, num):
    found = oracle.chain_distribution(method, p, q, num)
    return np.abs(found - tables.joint(p.__getitem__, SIZE, num + 1)).max()


# ---- the oracle ----------------------------------------------------------------------------------


def test_the_oracle_is_lossless():
    for num in [0, 1, 2, 3]:
        for p, q in pairs(num, 1):
            assert error(oracle.block, p, q, num) < 1e-12
            assert error(oracle.token_by_token, p, q, num) < 1e-12


def test_the_example_of_the_paper():
    """Sun et al. 2024, section 2: tokens kept of two, 10/9 one by one and 11/9 as a block."""
    prefixes = [w for n in range(3) for w in itertools.product(range(2), repeat=n)]
    p = {prefix: np.array([1, 2]) / 3 for prefix in prefixes}
    q = {prefix: np.array([2, 1]) / 3 for prefix in prefixes}
    assert oracle.expected_kept(oracle.token_by_token, p, q, 2) == pytest.approx(10 / 9, abs=1e-12)
    assert oracle.expected_kept(oracle.block, p, q, 2) == pytest.approx(11 / 9, abs=1e-12)
    assert oracle.expected_kept(verify, p, q, 2) == pytest.approx(11 / 9, abs=1e-12)


# ---- the probabilities ---------------------------------------------------------------------------


def test_the_emitted_tokens_have_the_targets_joint_distribution():
    for num in [0, 1, 2, 3]:
        for p, q in pairs(num, 1):
            assert error(verify, p, q, num) < 1e-12


def test_the_joint_distribution_in_float32():
    """Some ten roundings per token, 6e-8 each, of four tokens."""
    for p, q in pairs(0, 1):
        assert error(in_float32, p, q, 3) < 2.4e-6


def test_acceptance_is_the_oracles():
    """Residuals as far as they are drawn from."""
    for p, q in pairs(5, 1):
        for tokens, _, target, draft in oracle.chains(p, q, LENGTH):
            stops, residuals = oracle.block(target, draft, tokens)
            found_stops, found_residuals = verify(target, draft, tokens)
            assert np.abs(found_stops - stops).max() < 1e-12
            assert np.abs(stops[:, None] * (found_residuals - residuals)).max() < 1e-12


def test_a_block_keeps_at_least_as_much_as_token_by_token():
    gains = []
    for p, q in pairs(6, 1):
        one_by_one = oracle.expected_kept(oracle.token_by_token, p, q, 3)
        gains.append(oracle.expected_kept(verify, p, q, 3) - one_by_one)
    assert min(gains) > -1e-12 and max(gains) > 0.1


def cut(where):
    """A chain that ends after `where(q, tokens)` of its tokens."""

    def cut_short(p, q, tokens):
        return verify(p, q, tokens, length=where(q, tokens))

    return cut_short


def after_a_zero(q, tokens):
    return next((i + 1 for i, token in enumerate(tokens) if token == 0), len(tokens))


def before_an_unlikely_token(q, tokens):
    unlikely = (i for i, token in enumerate(tokens) if q[i][token] < 0.3)
    return next(unlikely, len(tokens))


def test_a_chain_may_end_by_its_tokens_so_far_and_not_by_the_next_one():
    errors = []
    for p, q in pairs(7, 1):
        assert error(cut(after_a_zero), p, q, 3) < 1e-12
        errors.append(error(cut(before_an_unlikely_token), p, q, 3))
    assert max(errors) > 0.05


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
