"""Block verification by enumeration of all chains; then the verifier against the oracle."""

import itertools

import jax
import numpy as np
import oracle
import pytest
import rounds

from jspec.types import Tree
from jspec.verify.block_verification import BlockVerification, acceptance

SIZE, LENGTH = 3, 3
ACCEPTANCE = jax.jit(acceptance)


def tables(seed, num):
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


def joint(p, num):
    """The distribution of num + 1 tokens of the target."""
    words = itertools.product(range(SIZE), repeat=num + 1)
    masses = [np.prod([p[w[:i]][w[i]] for i in range(num + 1)]) for w in words]
    return np.reshape(masses, [SIZE] * (num + 1))


def error(method, p, q, num):
    return np.abs(oracle.chain_distribution(method, p, q, num) - joint(p, num)).max()


# ---- the oracle ----------------------------------------------------------------------------------


def test_the_oracle_is_lossless():
    for num in [0, 1, 2, 3]:
        for p, q in tables(num, 1):
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
        for p, q in tables(num, 1):
            assert error(verify, p, q, num) < 1e-12


def test_the_joint_distribution_in_float32():
    """Some ten roundings per token, 6e-8 each, of four tokens."""
    for p, q in tables(0, 1):
        assert error(in_float32, p, q, 3) < 2.4e-6


def test_acceptance_is_the_oracles():
    """Residuals as far as they are drawn from."""
    for p, q in tables(5, 1):
        for tokens, _, target, draft in oracle.chains(p, q, LENGTH):
            stops, residuals = oracle.block(target, draft, tokens)
            found_stops, found_residuals = verify(target, draft, tokens)
            assert np.abs(found_stops - stops).max() < 1e-12
            assert np.abs(stops[:, None] * (found_residuals - residuals)).max() < 1e-12


def test_a_block_keeps_at_least_as_much_as_token_by_token():
    gains = []
    for p, q in tables(6, 1):
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
    for p, q in tables(7, 1):
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


# ---- the verifier --------------------------------------------------------------------------------

BATCH, VOCAB, DEPTH = 100, 7, 4
ROWS = rounds.Rows(BATCH)
VERDICT = jax.jit(BlockVerification().verdict)


def drafts(seed):
    """(tree, logits, lengths, ids, q): chains of 0 .. DEPTH tokens, q near the target's p.

    Node 3 is in no chain, so that ids have a gap, and q's rows are in an order of their own.
    """
    rng = np.random.default_rng(seed)
    ids, order = [0, 1, 2, 4, 5], [2, 0, 3, 1]
    logits = rng.normal(size=(BATCH, 6, VOCAB)).astype(np.float32) * 2
    near = np.exp(logits[:, ids[:-1]] + rng.normal(size=(BATCH, DEPTH, VOCAB)) * 0.7)
    q = near / near.sum(-1, keepdims=True)
    tokens = np.zeros((BATCH, 6), np.int32)
    for row, level in itertools.product(range(BATCH), range(DEPTH)):
        tokens[row, ids[level + 1]] = rng.choice(VOCAB, p=q[row, level])
    lengths = np.arange(BATCH) % (DEPTH + 1)
    valid = np.zeros((BATCH, 6), bool)
    for row, length in enumerate(lengths):
        valid[row, ids[: length + 1]] = True
    q_row = np.zeros((BATCH, 6), np.int32)
    q_row[:, ids[:-1]] = order
    tree = Tree(
        tokens=tokens,
        parents=np.tile([-1, 0, 1, 0, 2, 4], (BATCH, 1)),
        valid=valid,
        q=q[:, np.argsort(order)].astype(np.float32),
        q_row=q_row,
        depth=DEPTH,
        width=1,
    )
    return tree, logits, lengths, ids, q


def test_the_verifier_decides_as_the_oracle_with_the_same_coins_and_noise():
    tree, logits, lengths, ids, q = drafts(0)
    frame = ROWS.frame()
    verdict = jax.device_get(VERDICT(tree, logits, frame))
    uniforms = rounds.coins(frame, DEPTH)
    kept, residuals = [], []
    for row, length in enumerate(lengths):
        temperature = frame.sampling.temperature[row]
        p = [oracle.probabilities(logits[row, node], temperature) for node in ids[: length + 1]]
        tokens = tree.tokens[row, ids[1 : length + 1]]
        probabilities, _ = oracle.block_probabilities(p, q[row], tokens)
        passed = np.flatnonzero(uniforms[row, :length] < probabilities)
        kept.append(passed[-1] + 1 if passed.size else 0)
        residuals.append(oracle.block(p, q[row], tokens)[1][kept[-1]])
        path = ids[: kept[-1] + 1]
        assert verdict.path[row].tolist() == path + [0] * (DEPTH + 1 - len(path))
    rounds.check_verdict(verdict, frame, kept, residuals)
    assert np.bincount(kept).size == DEPTH + 1 and np.bincount(kept).min() > 3
    assert not verdict.failed.any()


@pytest.mark.parametrize("sampling", [None, ROWS.settings(0)], ids=["greedy", "cold"])
def test_greedy_rows_emit_the_greedy_tokens(sampling):
    tree, logits, lengths, ids, _ = drafts(1)
    verdict = jax.device_get(VERDICT(tree, logits, ROWS.frame(sampling)))
    for row, length in enumerate(lengths):
        truth = logits[row, ids].argmax(-1)
        right = np.cumprod(tree.tokens[row, ids[1 : length + 1]] == truth[:length]).sum(dtype=int)
        assert verdict.path_lengths[row] == right + 1 and verdict.bonus[row] == truth[right]


def test_a_node_without_a_distribution_ends_the_chain():
    """Judges kept tokens as if the chain ended there; no token is drawn."""
    tree, logits, _, ids, _ = drafts(2)
    broken = logits.copy()
    broken[:, ids[2], 1], broken[:, ids[3]] = np.nan, np.nan
    short = tree.replace(valid=tree.valid & (np.arange(6) <= ids[2]))
    found, expected = jax.device_get(
        [VERDICT(tree, broken, ROWS.frame()), VERDICT(short, logits, ROWS.frame())]
    )
    np.testing.assert_array_equal(found.path, expected.path)
    np.testing.assert_array_equal(found.failed, expected.path_lengths == 3)
    np.testing.assert_array_equal(found.bonus[~found.failed], expected.bonus[~found.failed])
    assert 0 < found.failed.sum() < BATCH
    nothing = VERDICT(tree, np.full_like(logits, -np.inf), ROWS.frame())
    assert nothing.failed.all() and (nothing.path_lengths == 1).all()


def test_rows_that_ended_are_not_judged():
    tree, logits, *_ = drafts(3)
    verdict = VERDICT(tree, logits * np.nan, ROWS.frame(done=True))
    assert not verdict.failed.any() and (verdict.path_lengths == 1).all()


def test_a_row_is_verified_independently_of_its_neighbours():
    tree, logits, *_ = drafts(4)
    whole = tree, logits, ROWS.frame()
    order = np.random.default_rng(4).permutation(BATCH)
    shuffled = VERDICT(*jax.tree.map(lambda leaf: leaf[order], whole))
    straight = VERDICT(*whole)
    for a, b in zip(jax.tree.leaves(shuffled), jax.tree.leaves(straight), strict=True):
        np.testing.assert_array_equal(a, b[order])


def test_no_coin_is_tossed_twice():
    """A round tests tokens behind the last that it keeps, and there the next round begins."""
    tree, _, _, ids, _ = drafts(0)
    even = np.full(VOCAB, 1 / VOCAB, np.float32)
    double = np.where(np.arange(VOCAB) == 0, 2, (VOCAB - 2) / (VOCAB - 1)).astype(np.float32)

    def kept(place, position):
        """Returns whether the token there is kept: with 1/2, as all before it are for certain."""
        q = np.tile(even, (BATCH, 6, 1))
        q[:, ids[place - 1]] = double / VOCAB
        valid = np.tile(np.arange(6) <= ids[place], (BATCH, 1))
        zeros = tree.replace(tokens=tree.tokens * 0, valid=valid, q=q, q_row=None)
        frame = ROWS.frame(ROWS.settings(1))
        frame = frame.replace(positions=frame.positions + position)
        logits = np.zeros((BATCH, 6, VOCAB), np.float32)
        return np.asarray(VERDICT(zeros, logits, frame).path_lengths) == place + 1

    first, second = kept(2, position=0), kept(1, position=1)
    # Five standard deviations of BATCH fair uniforms are 1/4.
    for heads in (first, second, first == second):
        assert abs(heads.mean() - 1 / 2) < 1 / 4


def test_unverifiable_trees_are_refused():
    tree, logits, *_ = drafts(0)
    with pytest.raises(ValueError, match="judges chains and a node of this tree has up to 2"):
        BlockVerification().verdict(tree.replace(width=2), logits, ROWS.frame())
    with pytest.raises(ValueError, match="needs the distributions q that the chain was drawn from"):
        BlockVerification().verdict(tree.replace(q=None), logits, ROWS.frame())
