"""Policies of one's own: they change no token, and what cannot be one is one sentence."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from contract.methods import DRAFTERS, OF_A_RULE_OF_THEIR_OWN, AtRandom

import jspec
from jspec.decoding import decode_rounds
from jspec.round.widths import cut, node_indices
from jspec.testing import PrefixLM
from jspec.verify.choice import takes_parts

MODEL = PrefixLM()
PARAMS = MODEL.init()
LOOKUP = jspec.PromptLookup(num_speculative_tokens=4, min_match=1, whole=False)
CALL = dict(prompt=tiny.PROMPTS, prompt_lengths=tiny.LENGTHS, max_new_tokens=12)


@dataclass(frozen=True)
class Told(jspec.WidthPolicy):
    """Does what it is told; values rise along paths, so that parents are left out."""

    widths: tuple = (0, 2, 4)
    index: object = None
    """The chosen width; None: its params."""
    asked: bool | None = None
    """The result of `should_draft` in every round; None: True, which is known beforehand."""
    grows: bool = False

    def init(self, batch, capacity, earlier):
        return jnp.zeros(3) if self.grows else ()

    def should_draft(self, params, state):
        return True if self.asked is None else jnp.bool_(self.asked)

    def choose(self, params, state, tree, frame):
        rising = jnp.arange(1, tree.tokens.shape[1] + 1, dtype=jnp.float32) / 9
        values = jnp.broadcast_to(rising, tree.tokens.shape)
        return jspec.WidthChoice(params if self.index is None else self.index, values)

    def update(self, params, state, feedback):
        return jnp.zeros(4) if self.grows else state


def test_an_index_out_of_range_is_the_nearest_and_rising_values_change_no_token():
    plain = jspec.decode(MODEL, PARAMS, **CALL)
    for index in (-3, 9):
        params = jnp.int32(index)
        result = jspec.decode(
            MODEL, PARAMS, **CALL, drafter=LOOKUP, policy=Told(), policy_params=params
        )
        np.testing.assert_array_equal(result.tokens, plain.tokens)
        used = np.asarray(result.stats.width_histogram) > 0
        assert used.any(0).tolist() == [index < 0, False, index > 0]


@pytest.mark.slow
def test_a_fixed_width_verifies_the_best_nodes_or_else_the_first():
    plain = jspec.decode(MODEL, PARAMS, **CALL)
    for width in (0, 1):
        policy = jspec.FixedWidth(width)
        result = jspec.decode(MODEL, PARAMS, **CALL, drafter=LOOKUP, policy=policy)
        np.testing.assert_array_equal(result.tokens, plain.tokens)
        stats = result.stats
        assert stats.widths == (width,) and (stats.num_draft_tokens == stats.num_drafts).all()
        assert bool(stats.num_accepted_tokens.sum()) == bool(width)
    drawn = jspec.Template(((0,), (1,), (0, 0), (0, 1))).fill(jnp.array([[9, 1, 2, 3, 4]]))
    for values, nested, wanted in (
        (None, False, [9, 1, 2]),
        ([[1, 0.5, 0.9, 0.4, 0.1]], False, [9, 1, 2]),
        ([[1, 0.5, 0.3, 0.4, 0.1]], False, [9, 1, 3]),
        ([[1, 0.5, 0.3, 0.4, 0.1]], True, [9, 1, 2]),
    ):
        tree = drawn.replace(value=None if values is None else jnp.array(values), nested=nested)
        part = cut(tree, 2)
        assert part.tokens[0].tolist() == wanted and (part.depth, part.width) == (2, 2)
        assert node_indices(tree, 2)[0].tolist() == [
            drawn.tokens[0].tolist().index(t) for t in wanted
        ]


def test_a_policy_that_never_asks_is_plain_decoding_with_a_state():
    plain = jspec.decode(MODEL, PARAMS, **CALL)
    result = jspec.decode(
        MODEL, PARAMS, **CALL, drafter=LOOKUP, policy=Told(asked=False), policy_params=jnp.int32(2)
    )
    np.testing.assert_array_equal(result.tokens, plain.tokens)
    assert int(result.stats.num_draft_tokens.sum()) == 0
    assert result.stats.width_histogram[:, 1:].sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DRAFTERS if name not in OF_A_RULE_OF_THEIR_OWN])
def test_rounds_at_random_change_no_token_of_any_drafter(name):
    drafter, params = DRAFTERS[name]
    assert takes_parts(drafter)
    model = tiny.model()
    prompt = np.resize(tiny.PROMPTS, (6, tiny.PROMPTS.shape[1]))  # as many as scripts are for
    ask = dict(sampling=jspec.Sampling(np.resize([0.0, 1.0, 0.7], 6)), key=5, max_new_tokens=16)
    target = model, tiny.params(model), prompt
    plain = jspec.decode(*target, **ask)
    given = dict(drafter=drafter, drafter_params=params)
    (nodes,) = jspec.prefill(*target, **given, **ask).stats.widths
    policy = AtRandom(tuple(sorted({0, nodes // 2, nodes})))
    result = jspec.decode(*target, **given, policy=policy, **ask)
    np.testing.assert_array_equal(result.tokens, plain.tokens)


def test_invalid_policies_are_refused_before_anything_is_compiled():
    draws = jspec.SpeculativeDecoding(MODEL, 3, scheme=jspec.schemes.RECURSIVE)
    sampled = dict(sampling=jspec.Sampling(), key=0, drafter=draws, drafter_params=PARAMS)
    one = jnp.int32(1)
    programs = decode_rounds._cache_size()
    for policy, params, more, said in (
        (jspec.FixedWidth, None, {}, "policy is <class .*; pass an instance such as"),
        (3, None, {}, "policy is 3; pass an instance such as jspec.FixedWidth"),
        (Told((2, 0)), one, {}, r"Told has widths \(2, 0\); give a tuple of rising numbers"),
        (Told((0, 0)), one, {}, r"Told has widths \(0, 0\); give a tuple of rising"),
        (Told([0, 2]), one, {}, "which cannot be hashed .* make it a frozen dataclass"),
        (Told((0, -1)), one, {}, "a width of Told is -1; pass an integer of at least 0"),
        (Told((0, 1.5)), one, {}, "a width of Told is 1.5; pass an integer"),
        (Told((0, 5)), one, {}, r"Told has widths \(0, 5\) and the drafter drafts 4 nodes; .* 4"),
        (jspec.FixedWidth(9), None, {}, r"FixedWidth has widths \(9,\) and .* at most 4"),
        (Told((1, 2), asked=True), one, {}, r"should_draft is not always True .* have no 0"),
        (Told(index=3), None, {}, r"choose returned index 3 and there are 3 widths .* 0 .. 2"),
        (Told(index=1.5), None, {}, r"returned index of shape \(\) and dtype float32; it must"),
        (Told(grows=True), one, {}, r"Told.update returned a state whose leaf .* shape \(4,\)"),
        (Told(), one, sampled, "SpeculativeDecoding's draws have a verifier of their own"),
        (jspec.Adaptive((0, 2)), one, {}, "policy_params is .* and Adaptive takes a cost curve"),
        (jspec.Adaptive((0, 2)), "dear", {}, "policy_params holds a str, which is not an array"),
    ):
        ask = CALL | dict(drafter=LOOKUP) | more
        with pytest.raises(jspec.InputError, match=said) as told:
            jspec.decode(MODEL, PARAMS, **ask, policy=policy, policy_params=params)
        assert len(str(told.value)) < 400 and "\n" not in str(told.value)
    assert decode_rounds._cache_size() == programs
    for seconds in (-1.0, float("nan"), 0.0, float("inf")):
        with pytest.raises(jspec.InputError, match=r"seconds of 4 tokens is .*; pass a"):
            jspec.CostCurve.of({1: 1.0, 4: seconds})
    with pytest.raises(jspec.InputError, match="num_speculative_tokens is -1; pass an integer"):
        jspec.FixedWidth(-1)
