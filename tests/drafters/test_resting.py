"""Drafters that rest while their drafts are not worth the time that drafting takes."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from jspec.drafters.resting import Rests, draft_unless

MODEL = jspec.testing.PrefixLM()
PARAMS = MODEL.init()
PROMPT = [[1, 2, 3, 1, 2, 4]]


def test_rests_grow_and_end():
    """Of 300 rounds that save nothing few are drafted; one that saves ends all that."""
    rests, asked = Rests.none(), []
    for _ in range(300):
        asked.append(bool(rests.over))
        rests = rests.after(jnp.float32(-1.0), jnp.float32(1.0))
    assert sum(asked) < 45 and sum(asked[200:]) < 10
    longest = max(len(run) for run in "".join("x" if now else "." for now in asked).split("x"))
    assert longest == 64
    while not rests.over:
        rests = rests.after(jnp.float32(-1.0), jnp.float32(1.0))
    rests = rests.after(jnp.float32(9.0), jnp.float32(1.0))
    assert rests.over and rests.next == 1


def test_long_rests_spare_three_rounds_of_four():
    rests, spared, left = Rests.none(), [], []
    for _ in range(300):
        spared.append(bool(rests.sparing))
        left.append(int(rests.left))
        rests = rests.after(jnp.float32(-1.0), jnp.float32(1.0))
    assert not any(spared[: left.index(16)]), "short rests learn from every round"
    long = spared[left.index(64) : left.index(64) + 64]
    assert sum(long) == 48 and not rests.none().sparing


def test_a_spared_round_leaves_a_matrix_as_it_was():
    drafter = jspec.DynamicTokenRecycling(23, num_speculative_tokens=2, k=2)
    rng = np.random.default_rng(0)
    state, logits = drafter.init(1, 0, None), jnp.asarray(rng.normal(size=(1, 1, 23)), jnp.float32)
    tree = jspec.tree.root_only(jnp.array([5]))
    scored = SimpleNamespace(
        tree=tree,
        output=SimpleNamespace(logits=logits),
        verdict=SimpleNamespace(path=jnp.array([[0]])),
    )
    for sparing in (None, jnp.bool_(False), jnp.bool_(True)):
        told = SimpleNamespace(
            scored=scored,
            sparing=sparing,
            done=jnp.array([False]),
            emitted=jnp.array([[7]]),
            counts=jnp.array([1]),
            positions=jnp.array([3]),
            keys=None,
            sampling=None,
        )
        after = drafter.update(None, state, told)
        assert after.before.tolist() == [5]
        learnt = replace(after, before=state.before)
        same = all(map(np.array_equal, jax.tree.leaves(learnt), jax.tree.leaves(state)))
        assert same == bool(sparing)


@pytest.mark.parametrize(("saved", "cost"), [(0.1, 1.0), (0.0, 0.0), (-1.0, 0.0), (-0.1, 1.0)])
def test_what_pays_or_costs_nothing_never_rests(saved, cost):
    rests = Rests.none()
    for _ in range(50):
        rests = rests.after(jnp.float32(saved), jnp.float32(cost))
        assert rests.over


def offer(drafter, memory, frame):
    return drafter.draft(None, memory, frame)


def test_a_rest_drafts_nothing_and_keeps_the_memory():
    drafter = jspec.Suffix(num_speculative_tokens=3)
    state = jspec.prefill(MODEL, PARAMS, PROMPT, drafter=drafter, max_new_tokens=8)
    now = jspec.round.frame(state)

    def drafted(resting):
        tree, memory, rests = draft_unless(resting, offer, drafter, state.drafter_state, now)
        assert rests
        return tree, memory

    whole, _ = drafter.draft(None, state.drafter_state, now)
    for resting in (False, True):
        tree, memory = drafted(jnp.bool_(resting))
        wanted = jax.tree.map(jnp.zeros_like, whole) if resting else whole
        jax.tree.map(np.testing.assert_array_equal, tree, wanted)
        for held, leaf in zip(
            jax.tree.leaves(state.drafter_state), jax.tree.leaves(memory), strict=True
        ):
            assert held is leaf, "what was not changed goes through no branch"


@dataclass(frozen=True)
class Counts:
    """A drafter that remembers how often it drafted."""

    def init(self, batch, slots, earlier):
        return jnp.int32(0)

    def prefill(self, params, state, chunk):
        return state

    def draft(self, params, state, frame):
        tree = jspec.tree.chain(2).fill(jnp.zeros((len(frame.root), 3), jnp.int32))
        return replace(tree, value=jnp.full((len(frame.root), 3), 1e-6)), state + 1

    def update(self, params, state, feedback):
        assert feedback.sparing is None, "who drafts in every round learns from every round"
        return state


def test_a_drafter_that_writes_as_it_drafts_is_always_asked():
    drafter = jspec.adaptive(Counts(), (0, 2))
    costs = jspec.CostCurve.of({1: 1.0, 3: 9.0}, undrafted=0.1)
    ask = dict(drafter=drafter, drafter_params=jspec.AdaptiveParams(None, costs))
    result = jspec.decode(MODEL, PARAMS, PROMPT, max_new_tokens=40, **ask)
    assert result.drafter_state.drafter == result.stats.num_rounds[0] == 40
    assert result.drafter_state.rests.next == 1, "there are no rests to be counted"


@dataclass(frozen=True)
class Learns(Counts):
    """A drafter that could rest, and whose rounds all verify something."""

    def draft(self, params, state, frame):
        tree, _ = super().draft(params, state, frame)
        return tree, state


def test_where_plain_decoding_is_no_choice_every_round_is_learnt_from():
    drafter = jspec.adaptive(Learns(), (1, 2))
    costs = jspec.CostCurve.of({2: 1.0, 3: 9.0}, undrafted=0.1)
    ask = dict(drafter=drafter, drafter_params=jspec.AdaptiveParams(None, costs))
    result = jspec.decode(MODEL, PARAMS, PROMPT, max_new_tokens=40, **ask)
    assert result.stats.num_draft_tokens[0] >= 39
    assert result.drafter_state.rests.next == 1


def test_a_drafter_that_is_wrong_rests_whichever_way_it_is_called():
    """Costs decide: the same drafter never rests where drafting takes no time."""
    drafter = jspec.adaptive(jspec.PromptLookup(num_speculative_tokens=2), (0, 2))
    plain = jspec.decode(MODEL, PARAMS, PROMPT, max_new_tokens=40)
    for undrafted, rested in ((0.1, True), (1.0, False)):
        costs = jspec.CostCurve.of({1: 1.0, 3: 9.0}, undrafted=undrafted)
        ask = dict(drafter=drafter, drafter_params=jspec.AdaptiveParams(None, costs))
        result = jspec.decode(MODEL, PARAMS, PROMPT, max_new_tokens=40, **ask)
        np.testing.assert_array_equal(result.tokens, plain.tokens)
        assert (int(result.drafter_state.rests.next) > 1) == rested


@dataclass(frozen=True)
class Hopeful:
    """It is sure of its drafts, and always wrong."""

    def init(self, batch, slots, earlier):
        return None

    def prefill(self, params, state, chunk):
        return state

    def draft(self, params, state, frame):
        tree = jspec.tree.chain(2).fill(jnp.zeros((len(frame.root), 3), jnp.int32))
        return replace(tree, value=jnp.full(tree.tokens.shape, 0.95)), state

    def update(self, params, state, feedback):
        return state


def test_one_refused_draft_is_luck_and_many_are_none():
    """The same round: alone a row goes by what was expected, beside others by what came of it."""
    costs = jspec.CostCurve.of({1: 1.0, 3: 1.2, 8: 1.0, 24: 1.2}, undrafted=0.9)
    for rows, tires in ((1, False), (8, True)):
        result = jspec.decode(
            MODEL, PARAMS, np.repeat(PROMPT, rows, axis=0), max_new_tokens=1,
            drafter=jspec.adaptive(Hopeful(), (0, 2)),
            drafter_params=jspec.AdaptiveParams(None, costs),
        )  # fmt: skip
        assert result.stats.num_draft_tokens[0] == 2 and result.stats.num_accepted_tokens[0] == 0
        assert (float(result.drafter_state.rests.saved) < 0) == tires
