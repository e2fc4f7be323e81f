"""Draws: their distributions by seeded statistics; coupled draws are the target's own.

A right distribution's statistic is over its bound once in a million runs; seeds are fixed.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import refusals
import tables

from jspec import sampling
from jspec.types import Frame, Sampling
from jspec.verify import proposals

MANY = 60_000
DISTRIBUTIONS = {
    "6": [0.4, 0.25, 0.15, 0.1, 0.07, 0.03],
    "7": [0.02, 0.0, 0.5, 0.08, 0.0, 0.3, 0.1],
    "10": [0.01, 0.2, 0.03, 0.3, 0.06, 0.1, 0.04, 0.15, 0.02, 0.09],
}
distributions = pytest.mark.parametrize("probs", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)


@dataclasses.dataclass(frozen=True)
class Cut(proposals.Groups):
    """Groups of any width."""

    cut: int = 1

    @property
    def width(self):
        return self.cut


def far(values, cumulative):
    """Kolmogorov's distance over its bound (Massart 1990), which 1 in 10^6 samples passes."""
    values = np.sort(values)
    steps = np.arange(len(values) + 1) / len(values)
    found = cumulative(values)
    distance = max((steps[1:] - found).max(), (found - steps[:-1]).max())
    return distance / np.sqrt(np.log(2e6) / 2 / len(values))


def draw_many(groups, probs, seed=0):
    noise = jax.random.gumbel(jax.random.key(seed), (MANY, groups.noise), mode="high")
    top = jax.jit(jax.vmap(groups.top, (None, 0)))
    scores, tokens = top(jnp.asarray(probs, jnp.float32), noise)
    return np.asarray(scores), np.asarray(tokens)


def pairs_of(tokens, size):
    counts = np.zeros((size, size))
    np.add.at(counts, tuple(tokens[:, :2].T), 1)
    return counts


@pytest.mark.parametrize(
    ("probs", "width"),
    [
        pytest.param(probs, width, marks=() if (name, width) == ("7", 2) else pytest.mark.slow)
        for name, probs in DISTRIBUTIONS.items()
        for width in (1, 2, 3, 4, 8, None)
    ],
)
def test_group_noise_draws_without_replacement(probs, width):
    """Tokens as drawn one after the other; scores as from noise for every token."""
    probs, size, num = np.array(probs), len(probs), 3
    groups = proposals.Groups(size, num) if width is None else Cut(size, num, width)
    if groups.searched * groups.width < num:
        pytest.skip("so few tokens are never looked at: the groups' width is chosen to hold them")
    scores, tokens = draw_many(groups, probs)
    probabilities = np.zeros((size, size))
    for pair, weight in oracle.draws_swor(probs, 2):
        probabilities[pair] = weight
    assert tables.distance(pairs_of(tokens, size), probabilities) < 1
    assert (np.diff(scores) <= 0).all()
    # The largest is a Gumbel variable around log 1, the others are as if drawn directly: half the
    # bound on each side of a comparison of two samples.
    assert far(scores[:, 0], lambda x: np.exp(-np.exp(-x))) < 1
    with np.errstate(divide="ignore"):
        free = np.log(probs) + np.random.default_rng(1).gumbel(size=(MANY, size))
    free = np.sort(free, axis=-1)[:, ::-1]
    for rank in range(num):
        known = np.sort(free[:, rank])
        assert far(scores[:, rank], lambda x, k=known: np.searchsorted(k, x) / MANY) < 2


@distributions
def test_a_draw_of_everything_ends_where_the_distribution_does(probs):
    probs = np.array(probs)
    scores, tokens = draw_many(proposals.Groups(len(probs), len(probs)), probs)
    possible = np.count_nonzero(probs)
    assert np.isfinite(scores[:, :possible]).all()
    assert (scores[:, possible:] == -np.inf).all()
    np.testing.assert_array_equal(
        np.sort(tokens[:, :possible]), np.broadcast_to(np.flatnonzero(probs), (MANY, possible))
    )


def test_truncated_gumbels_are_the_formula():
    rng = np.random.default_rng(0)
    values = rng.gumbel(size=(500, 6)) * 3
    values[rng.uniform(size=values.shape) < 0.2] = -np.inf
    values[:, 0] = rng.gumbel(size=500)
    largest = values.max(-1, keepdims=True)
    bound = rng.gumbel(size=(500, 1)) * 3
    with np.errstate(divide="ignore"):
        wanted = -np.log(np.exp(-bound) - np.exp(-largest) + np.exp(-values))
    truncated = jax.jit(proposals.truncate)
    found = truncated(*(jnp.asarray(x, jnp.float32) for x in (values, largest, bound)))
    with jax.enable_x64(True):
        exact = truncated(values, largest, bound)
    np.testing.assert_allclose(exact, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    nothing = proposals.truncate(
        jnp.full(3, -jnp.inf), jnp.array([-jnp.inf]), jnp.array([-jnp.inf])
    )
    assert (nothing == -jnp.inf).all()
    far_off = proposals.truncate(*(jnp.array([x], jnp.float32) for x in (-300.0, 5.0, -200.0)))
    np.testing.assert_allclose(far_off, -300.0, rtol=1e-6)


# ---- through the draws themselves ----------------------------------------------------------------


def round_of(batch, settings=Sampling(), position=5, first=0):
    rows = jnp.arange(first, first + batch)
    return Frame(
        root=jnp.zeros(batch, jnp.int32),
        positions=jnp.full(batch, position),
        keys=sampling.row_keys(jax.random.key(3), rows),
        sampling=jax.tree.map(lambda value: jnp.broadcast_to(value, batch), settings),
        done=jnp.zeros(batch, bool),
    )


def drawn(draw, logits, frame, size, level=0, settings=None):
    return jax.jit(draw, static_argnums=4)(jnp.asarray(logits), settings, frame, level, size)


PADDED = np.array([probs + [0.0] * (10 - len(probs)) for probs in DISTRIBUTIONS.values()])
NODES = np.concatenate([PADDED, PADDED[:, ::-1]])
"""Distributions at the six nodes of a row."""


def at_nodes(batch, nodes=NODES):
    return np.broadcast_to(tables.logits(nodes), (batch, *nodes.shape))


@pytest.mark.parametrize(
    ("draw", "ways"),
    [
        pytest.param(proposals.with_replacement, oracle.draws_iid, marks=pytest.mark.slow),
        (proposals.without_replacement, oracle.draws_swor),
    ],
)
def test_pairs_of_children_come_as_the_oracle_draws_them(draw, ways):
    found = drawn(draw, at_nodes(MANY), round_of(MANY), 2)
    tokens, size = np.asarray(found.tokens), NODES.shape[1]
    for node, probs in enumerate(NODES):
        probabilities = np.zeros((size, size))
        for pair, weight in ways(probs, 2):
            probabilities[pair] = weight
        assert tables.distance(pairs_of(tokens[:, node], size), probabilities) < 1
        np.testing.assert_allclose(found.child_probs[:, node], probs[tokens[:, node]], rtol=1e-5)
        np.testing.assert_allclose(found.q[0, node], probs, rtol=1e-5)
    # Nodes of a level are drawn independently of each other.
    assert tables.distance(pairs_of(tokens[:, :2, 0], size), np.outer(*NODES[:2])) < 1


@pytest.mark.slow
def test_a_list_is_drawn_independently_and_holds_the_target_s_token_as_the_lemma_says():
    """And the coupled draw does more often: its children are chosen by what decides."""
    p, q, rows, number = NODES[:3], NODES[3:], 15_000, 2
    frame = round_of(rows)
    noise = np.asarray(sampling.gumbel(frame.keys, frame.positions, p.shape[1]))
    with np.errstate(divide="ignore"):
        token = (np.log(p) + noise[:, None]).argmax(-1)
    held = {}
    for draw in (proposals.gumbel_list, proposals.coupled):
        children = np.asarray(drawn(draw, at_nodes(rows, q), frame, number).tokens)
        held[draw] = (children == token[..., None]).any(-1).mean(0)
        for node, probs in enumerate(q):
            found = pairs_of(children[:, node], q.shape[1])
            apart = tables.distance(found, np.outer(probs, probs))
            assert (apart < 1) == (draw == proposals.gumbel_list)
    for node in range(3):
        bound = oracle.list_bound(p[node], q[node], number)
        best = oracle.optimal_acceptance(p[node], q[node], number)
        assert bound - 0.02 < held[proposals.gumbel_list][node] < best + 0.02
    assert held[proposals.coupled].mean() > held[proposals.gumbel_list].mean() + 0.02


@pytest.mark.parametrize(
    "draw",
    [
        proposals.coupled,
        pytest.param(proposals.gumbel_list, marks=pytest.mark.slow),
        pytest.param(proposals.with_replacement, marks=pytest.mark.slow),
        proposals.without_replacement,
    ],
)
def test_a_row_draws_the_same_among_other_neighbours(draw):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 3, 40)).astype(np.float32) * 3
    frame = round_of(8, Sampling(jnp.linspace(0.0, 1.4, 8)))
    order = rng.permutation(8)
    others = logits[order] + 5 * (order % 2)[:, None, None] * rng.normal(size=logits.shape)
    here = drawn(draw, logits, frame, 4)
    there = drawn(draw, others.astype(np.float32), jax.tree.map(lambda x: x[order], frame), 4)
    for place, row in enumerate(order):
        same = np.array_equal(there.tokens[place], here.tokens[row])
        assert same == (row % 2 == 0)


MIXED = Sampling(
    temperature=jnp.tile(jnp.array([0.0, 0.3, 1.0, 1.7]), 200),
    top_p=jnp.repeat(jnp.array([1.0, 0.8]), 400),
    top_k=jnp.tile(jnp.array([0, 0, 5, 0, 0]), 160),
)


def test_a_draft_that_is_the_target_finds_its_token_first():
    """At every temperature in one batch, 0 among them, and under the target's filters."""
    batch, size = 800, 40
    logits = np.random.default_rng(1).normal(size=(batch, 2, size)).astype(np.float32) * 2
    frame = round_of(batch, MIXED)
    probs = jax.jit(sampling.probabilities)
    for level in (0, 2):
        found = drawn(proposals.coupled, logits, frame, 3, level)
        noise = sampling.gumbel(frame.keys, frame.positions + level, size)
        for node in range(2):
            logs = jnp.log(probs(jnp.asarray(logits[:, node]), frame.sampling))
            np.testing.assert_array_equal(found.tokens[:, node, 0], sampling.argmax(logs + noise))
        assert found.q is None
        assert len(np.unique(found.tokens[:, 0, 0])) > 10


def test_without_sampling_coupled_children_are_the_likeliest():
    logits = np.random.default_rng(3).normal(size=(5, 2, 40)).astype(np.float32)
    for frame in (round_of(5, None), round_of(5).replace(keys=None)):
        found = drawn(proposals.coupled, logits, frame, 4)
        np.testing.assert_array_equal(found.tokens, np.argsort(-logits, axis=-1)[..., :4])


def test_draws_that_need_a_distribution_say_so():
    cases = [
        ((round_of(1).replace(keys=None), None), "key is None; pass key=0"),
        ((round_of(1), Sampling(temperature=0)), "the draft's temperature is 0"),
        ((round_of(1), Sampling(temperature=0.0)), "the draft's temperature is 0"),
    ]
    for draw in (proposals.with_replacement, proposals.without_replacement):
        refusals.check(
            cases, lambda given, draw=draw: draw(jnp.zeros((1, 1, 5)), given[1], given[0], 0, 2)
        )
