"""Partition invariance, and models that break it."""

from dataclasses import dataclass

import jax.numpy as jnp
import pytest

import jspec
from jspec.testing import PrefixLM, check_partitions

PARAMS = PrefixLM().init()


def sentence(model, params=PARAMS, **request):
    with pytest.raises(AssertionError) as caught:
        check_partitions(model, params, max_new_tokens=8, **request)
    return str(caught.value)


def test_rows_that_see_their_neighbours_are_found():
    @dataclass(frozen=True)
    class Mixed(PrefixLM):
        def apply(self, params, tokens, positions, mask, memory, nodes=None):
            output = super().apply(params, tokens, positions, mask, memory, nodes)
            return output.replace(logits=output.logits + 3 * jnp.roll(output.logits, 1, axis=0))

    said = sentence(Mixed())
    assert said.startswith("a batch of the rows [3, 1, 0, 2] has the answers of the batch of all")
    assert "should be" in said


def test_log_probabilities_are_compared_where_no_token_differs():
    @dataclass(frozen=True)
    class Wide(PrefixLM):
        """A batch of two is scored by logits of another scale, which greedy tokens do not see."""

        def apply(self, params, tokens, positions, mask, memory, nodes=None):
            output = super().apply(params, tokens, positions, mask, memory, nodes)
            return output.replace(logits=output.logits * (1.01 if len(tokens) == 2 else 1))

    said = sentence(Wide(), sampling=None, drafter=jspec.Autoregressive())
    assert "a batch of the rows [0, 1]" in said and "within 0.0001 and differs by" in said


def test_a_wrong_number_of_prompts_is_refused():
    with pytest.raises(jspec.InputError, match="there are 2 prompts; pass four"):
        check_partitions(PrefixLM(), PARAMS, [[1], [2]])
    with pytest.raises(jspec.InputError, match="row_ids was given, and they are what is tried"):
        check_partitions(PrefixLM(), PARAMS, row_ids=[0, 1, 2, 3])
