"""The contract of models catches the models that break it, with the right sentence."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import struct

import jspec
from jspec import TreeKV
from jspec.testing import PrefixLM, check_model
from jspec.testing import model_contract as contract
from jspec.testing.model_subject import PARENTS, PAST, ModelSubject
from jspec.testing.promises import Report

MODEL = PrefixLM()
PARAMS = MODEL.init()


def sentence(model, params=PARAMS):
    with pytest.raises(AssertionError) as caught:
        check_model(model, params)
    return str(caught.value)


def test_a_sound_model_passes():
    assert not check_model(MODEL, PARAMS).skipped


def test_a_model_without_nodes_serves_as_a_target():
    @dataclass(frozen=True)
    class TargetOnly(PrefixLM):
        def apply(self, params, tokens, positions, mask, cache):
            return PrefixLM.apply(self, params, tokens, positions, mask, cache)

    assert "a tree by levels" in check_model(TargetOnly(), PARAMS).skipped[0]


def test_a_tentative_memory_has_the_methods_of_a_memory():
    class Tuples(PrefixLM):
        """Keys and values as a tuple, which a target may have."""

        commit = staticmethod(
            lambda memory, own, *path: PrefixLM.commit(memory, TreeKV(*own), *path)
        )

        def apply(self, params, tokens, positions, mask, memory, nodes=None):
            output = super().apply(params, tokens, positions, mask, memory)
            own = output.tentative
            return output.replace(tentative=(own.keys, own.values))

    class Target(Tuples):
        """The same, which takes no nodes."""

        def apply(self, params, tokens, positions, mask, memory):
            return super().apply(params, tokens, positions, mask, memory)

    @struct.dataclass
    class Short(TreeKV):
        """A model whose room is filled from the wrong place."""

        def put(self, later, at):
            return super().put(later, at - 1)

    with pytest.raises(AssertionError, match=r"a tuple has no concat\(later\); add it"):
        contract._check_levels(subject_of(Tuples(23)), Report())
    report = Report()
    contract._check_levels(subject_of(Target(23)), report)
    assert "serves as a target" in report.skipped[0]
    kv = (jnp.arange(6.0).reshape(1, 1, 6, 1),)
    one = Short(kv, kv)
    with pytest.raises(AssertionError, match=r"give what concat\(later\) gives"):
        contract._check_room(one, one, 6, 12)


def subject_of(model):
    tokens = np.random.default_rng(0).integers(23, size=(len(PAST), int(PAST.max()) + len(PARENTS)))
    return ModelSubject(model, PARAMS, tokens, None)


def changed(change):
    """The built-in model, with the arguments of `apply` changed."""

    @dataclass(frozen=True)
    class Changed(PrefixLM):
        def apply(self, params, tokens, positions, mask, cache, nodes=None):
            arguments = change(tokens, positions, mask, cache, nodes)
            return PrefixLM.apply(self, params, *arguments)

    return Changed()


def causal(tokens, positions, mask, cache, nodes):
    """Siblings see each other: every earlier token is seen."""
    count, size = mask.shape[1:]
    seen = jnp.arange(size) <= jnp.arange(count)[:, None] + size - count
    return tokens, positions, jnp.broadcast_to(seen, mask.shape), cache, nodes


def by_index(tokens, positions, mask, cache, nodes):
    """Positions are counted instead of read."""
    start = 0 if cache is None else cache.lengths[:, None]
    earlier = mask.shape[2] - mask.shape[1]
    counted = start + earlier + jnp.arange(tokens.shape[1])
    return tokens, jnp.broadcast_to(counted, tokens.shape), mask, cache, nodes


def beyond(tokens, positions, mask, cache, nodes):
    """One more slot is read than is committed."""
    if cache is not None:
        cache = replace(cache, lengths=cache.lengths + 1)
    return tokens, positions, mask, cache, nodes


def short(tokens, positions, mask, cache, nodes):
    """The last committed slot is not read."""
    if cache is not None:
        cache = replace(cache, lengths=cache.lengths - 1)
    return tokens, positions, mask, cache, nodes


def mixed(tokens, positions, mask, cache, nodes):
    """Every row reads the tokens of row 0."""
    return jnp.broadcast_to(tokens[:1], tokens.shape), positions, mask, cache, nodes


def forgetful(tokens, positions, mask, cache, nodes):
    """Nodes that were scored before are not seen."""
    if nodes is not None:
        earlier = mask.shape[2] - mask.shape[1]
        mask = mask & (jnp.arange(mask.shape[2]) >= earlier)
    return tokens, positions, mask, cache, nodes


def test_a_broken_forward_pass_is_reported():
    for change, said in (
        (causal, "the mask is honoured: row 0, node 2 sees nodes that are not above it"),
        (by_index, "positions are those given"),
        (short, "a text in chunks is scored as the whole: row 0"),
        (mixed, "rows are independent"),
        (forgetful, "a tree by levels is scored as at once"),
    ):
        assert said in sentence(changed(change))


def test_reading_beyond_the_cache_is_said():
    """With zeros beyond, the sum of what is seen may be right; with other numbers it is not."""

    @dataclass(frozen=True)
    class Summing(PrefixLM):
        """Adds up all slots, and trusts that the rest is zeros."""

        def apply(self, params, tokens, positions, mask, cache, nodes=None):
            output = PrefixLM.apply(self, params, tokens, positions, mask, cache, nodes)
            if cache is None:
                return output
            live = jnp.arange(cache.capacity) < cache.lengths[:, None]
            rest = (cache.values[0][:, 0, :, 0] * ~live).sum(-1)
            return replace(output, logits=output.logits + rest[:, None, None])

    assert "not committed, or cut off, leave no trace" in sentence(Summing())
    assert "not committed, or cut off, leave no trace" in sentence(changed(beyond))


def output_of(change):
    @dataclass(frozen=True)
    class Changed(PrefixLM):
        def apply(self, params, tokens, positions, mask, cache, nodes=None):
            return change(PrefixLM.apply(self, params, tokens, positions, mask, cache, nodes))

    return Changed()


def test_an_output_of_the_wrong_kind_is_said(monkeypatch):
    # The tests' own check of annotations would refuse it first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for change, said in (
        (lambda output: replace(output, logits=output.logits[:, -1]), "Output.logits are floats"),
        (lambda output: replace(output, hidden=output.hidden[0]), "Output.hidden is None or"),
        (lambda output: replace(output, tentative=None), "Output.tentative is what commit takes"),
        (lambda output: replace(output, logits=output.logits * jnp.nan), "are numbers"),
    ):
        assert said in sentence(output_of(change))


def test_a_context_of_the_wrong_kind_is_said():
    @dataclass(frozen=True)
    class Zero(PrefixLM):
        @property
        def context(self):
            return 0

        def __init__(self):
            object.__setattr__(self, "vocab_size", 23)
            object.__setattr__(self, "hidden_size", 16)

    assert "context is a positive int, or None" in sentence(Zero())
    with pytest.raises(jspec.InputError, match="context is 8"):
        check_model(PrefixLM(context=8), PARAMS)
