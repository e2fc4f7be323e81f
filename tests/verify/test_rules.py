"""Rules by enumeration: no draws, no luck."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jspec.verify import rules


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def distributions(seed, size):
    rng = np.random.default_rng(seed)
    for zeros in range(size):
        p = rng.dirichlet(np.ones(size))
        p[rng.permutation(size)[:zeros]] = 0
        yield p / p.sum()


# One compiled program per rule: enumeration calls it a thousand times.
POINT_MASS, COUPLED = jax.jit(rules.deterministic_proposal), jax.jit(rules.coupled)


def emitted(rule, p, children, valid, noise):
    """The distribution of the emitted token, from the rule's probabilities alone."""
    accept, residual = rule(jnp.asarray(p), None, jnp.asarray(children), jnp.asarray(valid), noise)
    accept, residual = np.asarray(accept), np.asarray(residual)
    probs, left = np.zeros_like(p), 1.0
    for child, probability, there in zip(children, accept, valid, strict=True):
        if there:
            probs[child] += left * probability
            left *= 1 - probability
    return probs + left * residual


def test_point_mass_emits_the_target_distribution_for_any_children():
    for num in [1, 2, 3]:
        for p in distributions(0, 4):
            for children in itertools.product(range(4), repeat=num):
                children, noise = np.array(children), np.zeros_like(p)
                for valid in itertools.product([True, False], repeat=num):
                    probs = emitted(POINT_MASS, p, children, np.array(valid), noise)
                    assert np.abs(probs - p).max() < 1e-12
                accept, _ = POINT_MASS(p, None, children, np.ones(num, bool), noise)
                wanted, _ = oracle.deterministic_proposal(p, children.tolist())
                np.testing.assert_allclose(accept, wanted, atol=1e-12)


def test_coupled_emits_the_token_that_the_noise_chose_whatever_is_drafted():
    rng = np.random.default_rng(2)
    for p in distributions(2, 4):
        noise = rng.gumbel(size=4)
        with np.errstate(divide="ignore"):
            token = int(np.argmax(np.log(p) + noise))
        for children in itertools.product(range(4), repeat=2):
            probs = emitted(COUPLED, p, np.array(children), np.ones(2, bool), noise)
            np.testing.assert_array_equal(probs, np.eye(4)[token])


def test_the_test_can_fail():
    """Negative control: a rule that forgets to renormalise what is left after a rejection."""

    def greedy_ratio(p, q, children, valid, noise):
        return p[children], POINT_MASS(p, q, children, valid, noise)[1]

    p = np.array([0.5, 0.3, 0.2])
    probs = emitted(greedy_ratio, p, np.array([0, 1]), np.ones(2, bool), np.zeros_like(p))
    assert np.abs(probs - p).max() > 0.05


# ---- rules for sampled children ------------------------------------------------------------------

# All draws of all pairs of distributions go through a rule at once; each shape compiles once.
RECURSIVE, MULTI_ROUND, K_SEQ = (
    jax.jit(jax.vmap(rule, in_axes=(0, 0, 0, 0, None)))
    for rule in (rules.recursive, rules.multi_round, rules.k_seq)
)
SAMPLED = {
    "recursive": (RECURSIVE, oracle.recursive, oracle.draws_swor),
    "multi_round": (MULTI_ROUND, oracle.multi_round, oracle.draws_iid),
    "k_seq": (K_SEQ, oracle.k_seq, oracle.draws_iid),
}
sampled = pytest.mark.parametrize(("rule", "reference", "draws"), SAMPLED.values(), ids=SAMPLED)


def top(probs, k):
    """The distribution after top-k, as a filtered model has it."""
    kept = np.where(probs >= np.sort(probs)[-k], probs, 0)
    return kept / kept.sum()


def pairs(size):
    """(p, q): whole, with zeros, filtered on either side or both, disjoint, equal, certain."""
    rng = np.random.default_rng(size)
    for zeros in itertools.product(range(size), repeat=2):
        p, q = rng.dirichlet(np.ones(size), size=2)
        p[rng.permutation(size)[: zeros[0]]] = 0
        q[rng.permutation(size)[: zeros[1]]] = 0
        yield p / p.sum(), q / q.sum()
    for _ in range(3):
        p, q = rng.dirichlet(np.ones(size), size=2)
        yield from [(p, top(q, 2)), (top(p, 2), q), (top(p, 2), top(q, 2)), (p, top(p, 2)), (p, p)]
    half = np.arange(size) < size // 2
    yield half / half.sum(), ~half / (~half).sum()
    yield from itertools.product(np.eye(size)[:2], repeat=2)


def verdicts(rule, cases, dtype=np.float64):
    """(accept [., 3], residual [., V]) of cases (p, q, at most three children)."""
    count = len(cases)
    if len(cases[0][0]) < 9:  # filled up to a power of two: few shapes, few programs
        cases = [*cases, *[cases[0]] * (max(1 << (count - 1).bit_length(), 1024) - count)]
    children = np.array([(*c, *[-1] * (3 - len(c))) for _, _, c in cases], np.int32)
    p, q = (np.array([case[i] for case in cases], dtype) for i in (0, 1))
    accept, residual = rule(p, q, children, children >= 0, np.zeros(p.shape[-1]))
    assert accept.dtype == residual.dtype == dtype
    assert np.isfinite(accept).all() and np.isfinite(residual).all()
    return np.asarray(accept, np.float64)[:count], np.asarray(residual, np.float64)[:count]


def distributions_of(rule, nodes, dtype=np.float64):
    """Distribution of the token emitted at each node (p, q, draws), over draws of its children."""
    cases = [(p, q, children) for p, q, draws in nodes for children, _ in draws]
    found = iter(zip(*verdicts(rule, cases, dtype), strict=True))
    totals = []
    for p, _, draws in nodes:
        total = np.zeros(len(p))
        for children, weight in draws:
            accept, residual = next(found)
            assert not accept[len(children) :].any()
            total += weight * oracle.emission(accept[: len(children)], residual, children)
        totals.append(total)
    return totals


# In float32 a child costs some six roundings (difference, sums, quotients, the product of those
# before) of numbers no larger than 1, 2^-24 each: 18 * 6e-8 for three.
@pytest.mark.parametrize(("dtype", "most"), [(np.float64, 1e-12), (np.float32, 1.1e-6)])
@pytest.mark.parametrize("size", [3, 4])
@sampled
def test_sampled_rules_are_lossless(rule, reference, draws, size, dtype, most):
    nodes = [(p, q, draws(q, num)) for num in (1, 2, 3) for p, q in pairs(size)]
    for (p, _, _), total in zip(nodes, distributions_of(rule, nodes, dtype), strict=True):
        assert np.abs(total - p).max() < most


@pytest.mark.parametrize("num", [0, 1, 2, 3])
@sampled
def test_sampled_rules_are_the_oracles(rule, reference, draws, num):
    """For all children, repeated and undrawable ones too; residuals where they are drawn from."""
    tuples = list(itertools.product(range(4), repeat=num))
    cases = [(p, q, children) for p, q in pairs(4) for children in tuples]
    for case, accept, residual in zip(cases, *verdicts(rule, cases), strict=True):
        want_accept, want_residual = reference(*case)
        reach = np.cumprod([1.0, *(1 - want_accept)])
        # Between equal distributions gamma is a K-th root at 1, found to the K-th root of 2^-53.
        most = 1e-5 if rule is K_SEQ and (case[0] == case[1]).all() else 1e-12
        assert not accept[num:].any()
        assert np.abs(reach[:-1] * (accept[:num] - want_accept)).max(initial=0) < most
        if want_residual.any() and (case[1][list(case[2])] > 0).all():
            assert np.abs(reach[-1] * (residual - want_residual)).max() < most
            assert abs(residual.sum() - 1) < 1e-12


@sampled
def test_absent_children_change_nothing_at_any_place(rule, reference, draws):
    p, q = (np.array(column) for column in zip(*pairs(4), strict=True))
    children = np.random.default_rng(0).integers(4, size=(len(p), 3), dtype=np.int32)
    for there in itertools.product([True, False], repeat=3):
        there = np.broadcast_to(there, children.shape)
        accept, residual = rule(p, q, np.where(there, children, -1), there, np.zeros(p.shape[-1]))
        first = np.argsort(~there[0], kind="stable")
        front_accept, front_residual = rule(
            p, q, children[:, first], there[:, first], np.zeros(p.shape[-1])
        )
        np.testing.assert_array_equal(np.asarray(accept)[:, first], front_accept)
        np.testing.assert_array_equal(residual, front_residual)
        assert not np.asarray(accept)[~there].any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_last_child_of_an_exhausted_distribution_is_certain(dtype):
    """Without replacement all tokens are drawn in the end, and exactly 1 must not round below."""
    orders = list(itertools.permutations(range(3)))
    distributions = np.random.default_rng(3).dirichlet(np.ones(3), size=(50, 2))
    cases = [(p, q, order) for p, q in distributions for order in orders]
    accept, _ = verdicts(RECURSIVE, cases, dtype)
    reached = (accept[:, :2] < 1).all(-1)
    assert reached.sum() > 50 and (accept[reached, 2] == 1).all()


@sampled
def test_an_impossible_token_is_never_emitted(rule, reference, draws):
    cases = [(p, q, children) for p, q in pairs(4) for children, _ in draws(q, 3)]
    for case, accept, residual in zip(cases, *verdicts(rule, cases, np.float32), strict=True):
        p, _, children = case
        drafted = np.pad(p[list(children)], (0, 3 - len(children)))
        assert not accept[drafted == 0].any() and not residual[p == 0].any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@sampled
def test_a_certain_target_is_emitted_whatever_was_drafted(rule, reference, draws, dtype):
    """Greedy: whatever the uniforms, the token is the target's, even where q rounds to 1."""
    rng = np.random.default_rng(4)
    drafts = [*rng.dirichlet(np.ones(4), size=3), np.array([1e-9, 1 - 1e-9, 0, 0])]
    tuples = list(itertools.product(range(4), repeat=3))
    cases = [(p, q, children) for p in np.eye(4) for q in drafts for children in tuples]
    for (p, _, children), accept, residual in zip(
        cases, *verdicts(rule, cases, dtype), strict=True
    ):
        assert not accept[p[list(children)] == 0].any()
        assert (residual > 0).tolist() == (p > 0).tolist()


@pytest.mark.parametrize("distance", [1e-3, 1.0])
def test_float32_holds_for_a_large_vocabulary(distance):
    """Tests the residual of nearly equal distributions: all rounding, but rarely reached.

    Pairwise sums of V numbers round log V = 17 times, 6e-8 each, and a child takes two.
    """
    size, rng = 2**17, np.random.default_rng(5)
    scores = rng.normal(size=size) * 3
    raw = np.exp(scores), np.exp(scores + distance * rng.normal(size=size))
    p, q = ((probs / probs.sum()).astype(np.float32).astype(np.float64) for probs in raw)
    children = tuple(rng.choice(size, p=q / q.sum(), size=3, replace=False).tolist())
    most = 3 * 2 * 17 * 6e-8
    for rule, reference in ((RECURSIVE, oracle.recursive), (MULTI_ROUND, oracle.multi_round)):
        accept, residual = verdicts(rule, [(p, q, children)], np.float32)
        found = oracle.emission(accept[0], residual[0], children)
        wanted = oracle.emission(*reference(p, q, children), children)
        assert np.abs(found - wanted).sum() < most
    # Any gamma will do here, so it is not compared, but over all draws the distribution must be p.
    child = int(np.argmin(p / q))
    accept, residual = verdicts(K_SEQ, [(p, q, (child,) * 3)], np.float32)
    gamma = p[child] / q[child] / accept[0, 0]
    kept = np.minimum(q, p / gamma)
    refused = 1 - kept.sum()
    found = kept * (1 + refused + refused**2) + refused**3 * residual[0]
    assert np.abs(found - p).sum() < most
    # .. and it must be the best as far as acceptance goes.
    best = oracle.k_seq_gamma(p, q, 3)
    assert refused**3 - (1 - np.minimum(q, p / best).sum()) ** 3 < most


def test_rules_for_sampled_children_need_their_distribution():
    p, children = jnp.ones(3) / 3, jnp.zeros(1, int)
    for rule in (rules.recursive, rules.multi_round, rules.k_seq):
        with pytest.raises(
            ValueError, match="rule needs the distribution q that the children were drawn"
        ):
            rule(p, None, children, children == 0, p)


def test_bernoulli_acceptance_of_figure_1():
    """Recursive Speculative Decoding, Fig. 1, two children: SpecInfer, K-SEQ, gamma, OTM, RRS."""
    for draft, target, expected in oracle.RSD_FIGURE_1:
        p, q = np.array([1 - target, target]), np.array([1 - draft, draft])

        def acceptance(rule, draws, p=p, q=q):
            accept, _ = verdicts(rule, [(p, q, children) for children, _ in draws])
            return 1 - np.array([weight for _, weight in draws]) @ np.prod(1 - accept, axis=1)

        iid, swor = oracle.draws_iid(q, 2), oracle.draws_swor(q, 2)
        unlikely, _ = verdicts(K_SEQ, [(p, q, (0, 0))])  # accepted with p / (gamma q)
        figures = [
            acceptance(MULTI_ROUND, iid),
            acceptance(K_SEQ, iid),
            p[0] / q[0] / unlikely[0, 0],
            oracle.optimal_acceptance(p, q, 2),
            acceptance(RECURSIVE, swor),
        ]
        np.testing.assert_allclose(figures, expected, atol=5.1e-5)


# What is wrong must show. Where one refusal leaves a single token, most mistakes cancel; not here.
P, Q = np.array([0.2, 0.4, 0.4]), np.array([0.6, 0.3, 0.1])


def error(rule, draws, p=P, q=Q):
    (total,) = distributions_of(rule, [(p, q, draws)])
    return np.abs(total - p).max()


def changed(draws, change):
    """The draws after `change` has dropped some of the children."""
    return [(tuple(change(children)), weight) for children, weight in draws]


def likely(children):
    return [child for child in children if Q[child] > 0.2]


def test_a_rule_with_the_wrong_draw_distribution_is_caught():
    cases = [
        (MULTI_ROUND, oracle.draws_swor(Q, 2), 0.150),
        (K_SEQ, oracle.draws_swor(Q, 2), 0.178),
        (MULTI_ROUND, changed(oracle.draws_iid(Q, 3), dict.fromkeys), 0.096),
        (K_SEQ, changed(oracle.draws_iid(Q, 3), dict.fromkeys), 0.095),
        (RECURSIVE, oracle.draws_swor(np.ones(3) / 3, 2), 0.119),  # another distribution's
        (RECURSIVE, [((0, 1), 1.0)], 0.178),  # the two most probable, for sure
        (RECURSIVE, changed(oracle.draws_swor(Q, 3), likely), 0.104),  # siblings behind are kept
    ]
    for rule, draws, size in cases:
        assert error(rule, draws) == pytest.approx(size, abs=5e-4)
