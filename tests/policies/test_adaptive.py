"""Widths chosen round by round: they change no token, leave every memory whole, and pay."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec
from jspec._validate.errors import InputError
from jspec.testing import PrefixLM
from jspec.tree.sanitize import sanitize
from jspec.types import Frame, PolicyFeedback, Tree

MODEL = PrefixLM()
PARAMS = MODEL.init()
BATCH = len(tiny.PROMPTS)
OTHER_TEXT = "the draft read another text"


@dataclass(frozen=True)
class Turns(jspec.WidthPolicy):
    """Each width in its turn, by the drafter's own values."""

    widths: tuple[int, ...]

    def init(self, batch, capacity, earlier):
        return jnp.int32(1)

    def choose(self, params, state, tree, frame):
        return jspec.WidthChoice(state % len(self.widths), tree.value)

    def update(self, params, state, feedback):
        return state + 1


def check_has_read(memory, target):
    """A `PrefixLM` keeps positions and tokens in its cache, whoever wrote them."""
    for row, length in enumerate(np.asarray(target.lengths) - 1):  # the last is read with the root
        assert memory.lengths[row] == length
        for own, its in ((memory.keys, target.keys), (memory.values, target.values)):
            np.testing.assert_array_equal(
                own[0][row, 0, :length], its[0][row, 0, :length], OTHER_TEXT
            )


def check_the_draft_has_read_what_the_target_has(num_nodes):
    drafting = dict(
        drafter=jspec.CoupledTree(MODEL, num_nodes, max_depth=4, beam=3), drafter_params=PARAMS,
        policy=Turns((0, 3, num_nodes)),
    )  # fmt: skip
    state = jspec.prefill(MODEL, PARAMS, tiny.PROMPTS, tiny.LENGTHS, **drafting, max_new_tokens=24)
    while not state.done.all():
        state = jspec.step(MODEL, PARAMS, state, **drafting)
        check_has_read(state.drafter_state.cache, state.memory)
    assert (state.stats.width_histogram.sum(0) > 0).all()
    assert int(state.stats.num_accepted_tokens.sum()) > 10


@pytest.mark.slow
def test_a_draft_model_reads_its_accepted_path_from_a_tree_that_was_cut():
    check_the_draft_has_read_what_the_target_has(9)


@pytest.mark.slow
def test_a_path_in_another_trees_numbers_is_caught(monkeypatch):
    """Verifies the best nodes; the drafter, one of its own, is told of the first ones."""

    def first(tree, width):
        return jnp.broadcast_to(jnp.arange(width + 1), (BATCH, width + 1))

    monkeypatch.setattr("jspec.round.phases.node_indices", first)
    with pytest.raises(AssertionError, match=OTHER_TEXT):
        check_the_draft_has_read_what_the_target_has(8)


def frame_of(batch, done=False):
    zeros = jnp.zeros(batch, jnp.int32)
    return Frame(zeros + 7, zeros, None, None, jnp.broadcast_to(jnp.asarray(done), batch))


def random_tree(rng, batch, size):
    parents = np.array([[-1, *(rng.integers(n) for n in range(1, size))] for _ in range(batch)])
    value = np.ones((batch, size), np.float32)
    for row in range(batch):
        for node in range(1, size):
            value[row, node] = value[row, parents[row, node]] * rng.uniform(0.05, 0.9)
    return Tree(
        tokens=jnp.asarray(rng.integers(0, 23, (batch, size)), jnp.int32),
        parents=jnp.asarray(parents, jnp.int32), valid=jnp.asarray(rng.random((batch, size)) < 0.9),
        depth=size - 1, width=size - 1, value=jnp.asarray(value),
    )  # fmt: skip


def test_the_choice_is_that_of_numpy():
    """The harmonic mean over running rows of 1 + E(w), over seconds.

    E is the share that came of what drafts of a kind promise. What a wider round takes longer
    counts 8% more for each other row.
    """
    rng, batch, widths = np.random.default_rng(2), 4, (0, 1, 4, 9)
    policy = jspec.Adaptive(widths)
    choose, state = jax.jit(policy.choose), policy.init(batch, 64, None)
    seen = set()
    for _ in range(40):
        done = rng.random(batch) < 0.3
        # Between and beyond the widths' numbers of tokens.
        points = np.sort(rng.choice(np.arange(2, 38), 5, replace=False))
        times = 1 + np.cumsum(rng.uniform(0, 1, 5)) * rng.choice([0.02, 0.3, 1.0, 5.0])
        costs = jspec.CostCurve.of(dict(zip(points.tolist(), times.tolist(), strict=True)))
        tree = sanitize(random_tree(rng, batch, 10), jnp.full(batch, 7))
        counts = rng.uniform(1, 9, (2, *state.promised.shape)).astype(np.float32)
        state = state.replace(promised=jnp.asarray(counts[0]), accepted=jnp.asarray(counts[1]))
        choice = choose(costs, state, tree, frame_of(batch, done))
        share, known = counts[1].astype(float) / counts[0], jax.device_get(tree)
        rows = []
        for row in np.flatnonzero(~done):
            sums = sums_of(known, row, known.value[row].astype(float), widths)
            rows.append(1 + np.minimum(share[kind_of(sums)] * sums, tree.depth))
        expected = np.reshape(rows, (-1, len(widths)))
        scored = np.array([batch * (1 + width) for width in widths])
        slope = (times[-1] - times[-2]) / (points[-1] - points[-2])
        seconds = np.interp(scored, points, times) + np.maximum(scored - points[-1], 0) * slope
        np.testing.assert_allclose(choice.expected_tokens, expected.sum(0), rtol=1e-5)
        np.testing.assert_allclose(choice.seconds, seconds, rtol=1e-5)
        waiting = 0.08 * max(len(rows) - 1, 0) * np.maximum(seconds - seconds[0], 0)
        rates = 1 / ((1 / expected).mean(0) if rows else 1) / (seconds + waiting)
        first, second = np.sort(rates)[::-1][:2]
        if first > second * (1 + 1e-5):
            assert choice.index == rates.argmax()
            seen.add(int(choice.index))
    assert len(seen) == len(widths)


def sums_of(tree, row, summands, widths):
    """The sums over the nodes of largest value, as many as each width verifies."""
    drafted = [node for node in range(1, tree.tokens.shape[1]) if tree.valid[row, node]]
    best = sorted(drafted, key=lambda node: -float(tree.value[row, node]))
    return np.array([sum(summands[node] for node in best[:width]) for width in widths])


def kind_of(sums):
    return sum(sums[-1] >= 0.5 * 1.5**number for number in range(8))


def test_what_is_learnt_is_that_of_loops():
    """Each row adds what its draft promised, and what came true of it, to the sums of its kind."""
    rng, widths, batch = np.random.default_rng(4), (1, 3, 9), 3
    policy, costs = jspec.Adaptive(widths), jspec.CostCurve.of({1: 1.0})
    choose, update = jax.jit(policy.choose), jax.jit(policy.update)
    state, unknown, kinds = policy.init(batch, 64, None), 0, set()
    promised = np.full(state.promised.shape, 4.0)
    accepted = 0.8 * promised
    for _ in range(30):
        tree = random_tree(rng, batch, 10)
        # Few tokens, so that texts go through trees.
        tree = sanitize(tree.replace(tokens=tree.tokens % 3), jnp.full(batch, 7))
        counts = rng.integers(0, 4, batch)
        emitted = rng.integers(0, 3, (batch, tree.depth + 1))
        promised, accepted = 0.98 * promised + 0.02 * 4, 0.98 * accepted + 0.02 * 0.8 * 4
        known = jax.device_get(tree)
        for row in np.flatnonzero(counts):
            value = known.value[row].astype(float)
            true, depths = np.ones(10), [0]
            for node in range(1, 10):
                above = known.parents[row, node]
                depth = depths[above] + 1
                depths.append(depth)
                if depth > counts[row]:
                    unknown += 0 < true[above]
                    true[node] = true[above] * value[node] / max(value[above], 1e-30)
                else:
                    true[node] = true[above] * (known.tokens[row, node] == emitted[row, depth - 1])
            sums = sums_of(known, row, value, widths)
            kinds.add(kind_of(sums))
            promised[kind_of(sums)] += sums
            accepted[kind_of(sums)] += sums_of(known, row, true, widths)
        choice = choose(costs, state, tree, frame_of(batch))
        told = PolicyFeedback(tree, choice, jnp.asarray(emitted, jnp.int32), jnp.asarray(counts))
        state = update(costs, state, told)
        np.testing.assert_allclose(state.promised, promised, rtol=1e-4)
        np.testing.assert_allclose(state.accepted, accepted, rtol=1e-4)
    assert unknown > 20 and len(kinds) > 2
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(state.accepted, promised, rtol=1e-4)


def test_misfits_are_refused_in_one_sentence():
    for widths, said in (
        ((-1, 1), "a width is -1; pass an integer of at least 0"),
        ((0, 1.5), "a width is 1.5; pass an integer"),
        ((), r"widths is \(\); give rising numbers of drafted nodes"),
        (3, "widths is 3; give rising numbers of drafted nodes"),
        ((0, 3, 3), r"widths is \(0, 3, 3\); give rising"),
        ((3, 0), r"widths is \(3, 0\); give rising"),
    ):
        with pytest.raises(InputError, match=said):
            jspec.Adaptive(widths)
    lookup = jspec.PromptLookup(num_speculative_tokens=3)
    ask = dict(model=MODEL, params=PARAMS, prompt=[[1, 2]], max_new_tokens=4, drafter=lookup)
    ask |= dict(policy_params=jspec.CostCurve.of({1: 1.0}))
    policy = jspec.Adaptive((0, 3))
    with pytest.raises(InputError, match=r"policy_state is a .* keeps an AdaptiveState"):
        jspec.decode(**ask, policy=policy, policy_state=jnp.zeros(3))
    with pytest.raises(InputError, match=r"widths \(0, 3, 4\) and .* drafts 3 nodes; .* at most 3"):
        jspec.decode(**ask, policy=jspec.Adaptive((0, 3, 4)))
    state = jspec.prefill(**ask, policy=policy)
    with pytest.raises(InputError, match=r"policy_params is .* and Adaptive takes"):
        jspec.step(MODEL, PARAMS, state, drafter=lookup, policy=policy, policy_params=np.float32(1))
    with pytest.raises(InputError, match=r"rounds of \(0, 3\) drafted nodes .* have \(0, 2\)"):
        jspec.step(MODEL, PARAMS, state, drafter=lookup, policy=jspec.Adaptive((0, 2)))
