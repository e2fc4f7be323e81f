"""Drafters that back off while drafts are not worth their time, and what a round at rest does."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from jspec.policies.backoff import Backoff
from jspec.protocols import Drafting
from jspec.round.phases import one_round
from jspec.testing import PrefixLM

MODEL = jspec.testing.PrefixLM()
PARAMS = MODEL.init()
PROMPT = [[1, 2, 3, 1, 2, 4]]
WIDTHS = jspec.Adaptive((0, 2))


def test_back_offs_grow_and_end():
    """Of 300 rounds that save nothing few are drafted, and one that saves ends that.

    Long back-offs skip three rounds of four.
    """
    backoff, asked, skipped, left = Backoff.init(), [], [], []
    for _ in range(300):
        asked.append(bool(backoff.over))
        skipped.append(bool(backoff.skip_expensive_updates))
        left.append(int(backoff.left))
        backoff = backoff.after(jnp.float32(-1.0), jnp.float32(1.0))
    assert not any(skipped[: left.index(16)]), "short back-offs learn from every round"
    assert sum(skipped[left.index(64) : left.index(64) + 64]) == 48
    assert sum(asked) < 45 and sum(asked[200:]) < 10
    longest = max(len(run) for run in "".join("x" if now else "." for now in asked).split("x"))
    assert longest == 64
    while not backoff.over:
        backoff = backoff.after(jnp.float32(-1.0), jnp.float32(1.0))
    backoff = backoff.after(jnp.float32(9.0), jnp.float32(1.0))
    assert backoff.over and backoff.next == 1


def test_a_skipped_round_leaves_a_matrix_as_it_was():
    drafter = jspec.TokenRecycling(23, jspec.tree.chain(2), k=2, pairs=4)
    rng = np.random.default_rng(0)
    state, logits = drafter.init(1, 0, None), jnp.asarray(rng.normal(size=(1, 1, 23)), jnp.float32)
    tree = jspec.tree.root_only(jnp.array([5]))
    scored = SimpleNamespace(
        tree=tree,
        output=SimpleNamespace(logits=logits),
        verdict=SimpleNamespace(path=jnp.array([[0]])),
    )

    @jax.jit
    def update(skip_expensive_updates):
        told = SimpleNamespace(
            scored=scored, skip_expensive_updates=skip_expensive_updates, done=jnp.array([False]),
            emitted=jnp.array([[7]]), counts=jnp.array([1]), positions=jnp.array([3]), keys=None,
            sampling=None,
        )  # fmt: skip
        return drafter.update(None, state, None, told)

    for skip_expensive_updates in (None, jnp.bool_(False), jnp.bool_(True)):
        after = update(skip_expensive_updates)
        assert after.before.tolist() == [5]
        learnt = replace(after, before=state.before)
        same = all(map(np.array_equal, jax.tree.leaves(learnt), jax.tree.leaves(state)))
        assert same == bool(skip_expensive_updates)


@pytest.mark.parametrize(("saved", "cost"), [(0.1, 1.0), (0.0, 0.0), (-1.0, 0.0), (-0.1, 1.0)])
def test_profitable_or_free_drafts_never_back_off(saved, cost):
    backoff = Backoff.init()
    for _ in range(50):
        backoff = backoff.after(jnp.float32(saved), jnp.float32(cost))
        assert backoff.over


def rounds(drafter, costs, left=0, policy=WIDTHS, weights=PARAMS):
    """States of a generation whose draft model is the target; it may begin with a back-off."""
    ask = dict(drafter=drafter, drafter_params=weights)
    decides = dict(policy=WIDTHS, policy_params=costs)
    state = jspec.prefill(MODEL, PARAMS, PROMPT, max_new_tokens=24, **ask, **decides)
    memory = state.policy_state
    backoff = replace(memory.backoff, left=jnp.int32(left))
    state = replace(state, policy_state=replace(memory, backoff=backoff))
    while not state.done.all():
        state = jspec.step(MODEL, PARAMS, state, **ask, **(decides | dict(policy=policy)))
        yield state


@dataclass(frozen=True)
class Forgetful(jspec.SpeculativeDecoding):
    """Commits zeros in a back-off, as if a draft had been made."""

    def update(self, params, state, aux, feedback):
        after = super().update(params, state, aux, feedback)
        if aux is not None:
            return after
        keys = jax.tree.map(jnp.zeros_like, after.cache.keys)
        return replace(after, cache=replace(after.cache, keys=keys))


@pytest.mark.slow
def test_a_memory_with_a_hole_is_caught():
    """The control of the contract, by which draft models read the text of their back-offs."""
    with pytest.raises(AssertionError, match="back-off"):
        jspec.testing.check_drafter(Forgetful(MODEL, 2), PARAMS, in_merge=False)


def test_a_drafter_that_is_wrong_rests_whichever_way_it_is_called():
    """Costs decide: the same drafter never backs off where drafting takes no time."""
    drafter = jspec.PromptLookup(num_speculative_tokens=2)
    plain = jspec.decode(MODEL, PARAMS, PROMPT, max_new_tokens=40)
    for undrafted, rested in ((0.1, True), (1.0, False)):
        costs = jspec.CostCurve.of({1: 1.0, 3: 9.0}, undrafted=undrafted)
        ask = dict(drafter=drafter, policy=WIDTHS, policy_params=costs)
        result = jspec.decode(MODEL, PARAMS, PROMPT, max_new_tokens=40, **ask)
        np.testing.assert_array_equal(result.tokens, plain.tokens)
        assert (int(result.policy_state.backoff.next) > 1) == rested


def test_a_curve_that_begins_at_one_row_serves_several():
    """Four rows take longer than one, with a draft and without: what it adds decides."""
    for undrafted, rested in ((1.0, False), (0.1, True)):
        costs = jspec.CostCurve.of({1: 1.0, 4: 2.0, 12: 2.0}, undrafted=undrafted)
        result = jspec.decode(
            MODEL, PARAMS, np.repeat(PROMPT, 4, axis=0), max_new_tokens=12, policy=WIDTHS,
            drafter=jspec.PromptLookup(num_speculative_tokens=2), policy_params=costs,
        )  # fmt: skip
        assert (int(result.policy_state.backoff.next) > 1) == rested


@dataclass(frozen=True)
class Hopeful(jspec.Drafter):
    """A drafter that is sure of its drafts, and always wrong."""

    def draft(self, params, state, frame):
        tree = jspec.tree.chain(2).fill(jnp.zeros((len(frame.root), 3), jnp.int32))
        return replace(tree, value=jnp.full(tree.tokens.shape, 0.95)), None


@pytest.mark.slow
def test_many_refused_drafts_back_off_and_one_does_not():
    """The same round: alone a row goes by what was expected, among others by what came of it."""
    costs = jspec.CostCurve.of({1: 1.0, 3: 1.2, 8: 1.0, 24: 1.2}, undrafted=0.9)
    for rows, tires in ((1, False), (8, True)):
        result = jspec.decode(
            MODEL, PARAMS, np.repeat(PROMPT, rows, axis=0), max_new_tokens=1,
            drafter=Hopeful(), policy=WIDTHS, policy_params=costs,
        )  # fmt: skip
        assert result.stats.num_draft_tokens[0] == 2 and result.stats.num_accepted_tokens[0] == 0
        assert (float(result.policy_state.backoff.saved) < 0) == tires


WIDE = PrefixLM(vocab_size=4096)
WIDE_PARAMS = WIDE.init()
MERGED = jspec.merge(jspec.Spine(4096, 7), jspec.Suffix(7, capacity=64), num_speculative_tokens=7)
COSTS = jspec.CostCurve.of({1: 1.0, 8: 2.0})


def work(jaxpr):
    """The elements that a program's operations write; of a condition's branches, the smallest."""
    total = 0
    for eqn in jaxpr.eqns:
        inside = [
            work(getattr(part, "jaxpr", part))
            for value in eqn.params.values()
            for part in (value if isinstance(value, tuple | list) else [value])
            if hasattr(getattr(part, "jaxpr", part), "eqns")
        ]
        written = eqn.outvars
        if eqn.primitive.name == "optimization_barrier":  # moves nothing
            written = []
        elif "scatter" in eqn.primitive.name:  # in place
            written = eqn.invars[2:]
        elif "update_slice" in eqn.primitive.name:
            written = eqn.invars[1:2]
        here = sum(int(np.prod(var.aval.shape)) for var in written)
        total += (min if eqn.primitive.name == "cond" else sum)(inside) if inside else here
    return total


def of_a_round(asked, drafter, policy, costs, *now):
    drafting = dict(drafter=drafter, policy=policy, policy_params=costs)
    state = jax.eval_shape(
        lambda: jspec.prefill(WIDE, WIDE_PARAMS, [[1, 2, 3]], max_new_tokens=4, **drafting)
    )
    program = jax.make_jaxpr(one_round, static_argnums=(0, 4, 5))
    told = Drafting(drafter, None, *(now or (policy, costs)))
    return work(program(WIDE, WIDE_PARAMS, state, told, asked, "cpu").jaxpr)


@pytest.mark.slow
def test_a_round_without_a_draft_adds_little_to_plain_decoding():
    """Checks that learning in short back-offs is in its own branch; a draft is the control."""
    adaptive = MERGED, jspec.Adaptive((0, 3, 7)), COSTS
    plain = of_a_round(True, jspec.Autoregressive(), jspec.FixedWidth(), None)
    assert of_a_round(False, *adaptive) < plain + 5 * WIDE.vocab_size
    # A width of 0 drafts nothing either, and learns.
    assert of_a_round(True, *adaptive, jspec.FixedWidth(0)) < plain + 100 * WIDE.vocab_size
    assert of_a_round(True, *adaptive) > plain + 100 * WIDE.vocab_size
