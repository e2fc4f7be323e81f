"""The oracle of sampled trees: cases by hand, exact sums over all draws, and what must fail.

Losslessness is a finite sum: over every tree that the draws can give, every uniform of the walk,
and what the target adds, the joint distribution of two tokens is the target's. Three tokens in the
vocabulary.
"""

import itertools
from functools import cache, partial

import numpy as np
import pytest

import oracle

VOCAB, DEPTH = 3, 2
EXACT = 1e-12


def model(seed, zeros=0.0):
    """prefix -> distribution: anew for each prefix, some tokens impossible."""

    @cache
    def probs(prefix):
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        mass = rng.dirichlet(np.ones(VOCAB))
        mass[rng.uniform(size=VOCAB) < zeros] = 0
        mass[rng.integers(VOCAB)] += 0.05
        return mass / mass.sum()

    return probs


# (p, q): both with all tokens possible, then with gaps in the one, the other, and both.
PAIRS = [
    (model(0), model(1)),
    pytest.param(model(2, zeros=0.4), model(3), marks=pytest.mark.slow),
    pytest.param(model(4), model(5, zeros=0.4), marks=pytest.mark.slow),
    (model(6, zeros=0.4), model(7, zeros=0.4)),
]
pairs = pytest.mark.parametrize(("p", "q"), PAIRS, ids=["full", "gaps-p", "gaps-q", "gaps-both"])


def joint(p, prefix=()):
    """The target's own distribution of the first tokens."""
    if len(prefix) == DEPTH:
        return np.ones(())
    probs = p(prefix)
    return np.stack([probs[token] * joint(p, (*prefix, token)) for token in range(VOCAB)])


def error(trees, rule, p, q):
    """Largest error of the joint distribution over all trees, each with its probability."""
    assert sum(probability for _, probability in trees) == pytest.approx(1, abs=EXACT)
    probs = sum(
        probability * oracle.walk_distribution(tree, rule, p, q, DEPTH)
        for tree, probability in trees
    )
    return np.abs(probs - joint(p)).max()


def orders(q, factors=(VOCAB,) * 9):
    return lambda prefix: oracle.draws_swor(q(prefix), factors[len(prefix)])


def independent(q, factors):
    return lambda prefix: oracle.draws_iid(q(prefix), factors[len(prefix)])


def sequences(q, num):
    """Every way to draw `num` independent sequences, as one draw at the root."""
    single = [
        (sequence, np.prod([q(sequence[:i])[token] for i, token in enumerate(sequence)]))
        for sequence in itertools.product(range(VOCAB), repeat=DEPTH)
    ]
    return [
        ([sequence for sequence, _ in drawn], np.prod([probability for _, probability in drawn]))
        for drawn in itertools.product([pair for pair in single if pair[1] > 0], repeat=num)
    ]


def every_rsd_c(q, factors):
    return oracle.every_tree(lambda ask: oracle.rsd_c(ask, factors), orders(q, factors))


def every_specinfer(q, factors):
    return oracle.every_tree(lambda ask: oracle.specinfer(ask, factors), independent(q, factors))


def every_spectr(q, num):
    return oracle.every_tree(lambda ask: oracle.spectr(ask(())), lambda _: sequences(q, num))


def changed(trees, change):
    """The same trees after `change(prefix, children)`; what hung below a lost child is lost."""

    def rebuilt(tree):
        children = oracle.children_of(tree)
        return oracle.tree_of(lambda prefix: change(prefix, children.get(prefix, [])))

    return [(rebuilt(tree), probability) for tree, probability in trees]


# ---- by hand -------------------------------------------------------------------------------------


def table(distributions):
    return lambda prefix: np.array(distributions[prefix], dtype=float)


HALVES = table(
    {
        (): [0.5, 0.25, 0.25],
        (0,): [0.5, 0.25, 0.25],
        (1,): [0.125, 0.125, 0.75],
        (2,): [0.25, 0.5, 0.25],
    }
)
ORDERS = {(): [1, 0, 2], (0,): [2, 0, 1], (1,): [2, 1, 0], (2,): [1, 0, 2]}


def test_dyspec_by_hand():
    """Checks a tree by hand. The root's slot is worth 1 and gives token 1, of 1/4. The next is
    worth 3/4 and gives token 0, of 1/2. Below 0 are then 1/2 with token 2 and 3/8 with token 0.
    Then four slots tie at 1/4: the root's third with token 2, and the first ones below 1, below 2
    and below 0 0.
    """
    grown = [oracle.dyspec_greedy(HALVES, ORDERS.__getitem__, budget) for budget in range(8)]
    children = [oracle.children_of(tree) for tree in grown]
    assert children[:5] == [
        {},
        {(): [1]},
        {(): [1, 0]},
        {(): [1, 0], (0,): [2]},
        {(): [1, 0], (0,): [2, 0]},
    ]
    assert children[5:] == [
        {(): [1, 0, 2], (0,): [2, 0]},
        {(): [1, 0, 2], (0,): [2, 0], (1,): [2]},
        {(): [1, 0, 2], (0,): [2, 0], (1,): [2], (2,): [1]},
    ]


# ---- losslessness, all randomness summed out ---------------------------------------------------


@pairs
def test_specinfer_is_lossless(p, q):
    for factors in [(2,), (1, 1), (2, 1), (2, 2), (3, 2)]:
        assert error(every_specinfer(q, factors), oracle.multi_round, p, q) < EXACT


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("rule", [oracle.k_seq, oracle.multi_round])
@pairs
def test_spectr_is_lossless(p, q, rule, num):
    """The rule sees the sequences that still match: its K shrinks from level to level."""
    assert error(every_spectr(q, num), rule, p, q) < EXACT


@pairs
def test_rsd_s_is_lossless(p, q):
    for width in [1, 2, 3, 4]:
        assert error(oracle.every_beam(q, width, DEPTH), oracle.recursive, p, q) < EXACT


# ---- negative controls: what is wrong must show --------------------------------------------------

P, Q = PAIRS[0]


def the_best(num, prefix, children):
    """Returns the children that are among the `num` most probable nodes of the whole tree."""
    nodes = [s for depth in (1, 2) for s in itertools.product(range(VOCAB), repeat=depth)]
    value = {s: np.prod([Q(s[:i])[token] for i, token in enumerate(s)]) for s in nodes}
    kept = sorted(nodes, key=lambda s: -value[s])[:num]
    return [token for token in children if (*prefix, token) in kept]


def recursive_on_repeats(p, q, children):
    """Takes what is left of q from p once more for a repeat, which q has lost already."""
    accept, _ = oracle.recursive(p, q, children)
    for child in children:
        p, q = np.maximum(p - q, 0), np.where(np.arange(VOCAB) == child, 0, q)
        p, q = (probs / (probs.sum() or 1) for probs in (p, q))
    return accept, p


WRONG = {
    "drawn nodes kept for their own value":
        (oracle.recursive, lambda: changed(every_rsd_c(Q, (3, 3)), partial(the_best, 5))),
    "independent draws under recursive, which repeats change":
        (recursive_on_repeats, lambda: every_specinfer(Q, (3, 2))),
    "a beam's siblings in the order of their ids":
        (oracle.recursive, lambda: changed(oracle.every_beam(Q, 2, DEPTH), lambda _, c: sorted(c))),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "trees"), WRONG.values(), ids=WRONG)
def test_wrong_variants_are_detected(rule, trees):
    assert error(trees(), rule, P, Q) > 0.04


def value(q, orders, slot):
    """The probability that the child of a rank below a prefix is tried: equations 9 to 11."""
    prefix, rank = slot
    reached = np.prod([q(prefix[:depth])[token] for depth, token in enumerate(prefix)])
    return reached * (1 - q(prefix)[orders(prefix)[:rank]].sum())
