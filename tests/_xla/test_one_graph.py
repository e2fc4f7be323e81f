"""The switch that makes rounds one CUDA graph, as far as a CPU can show it."""

import jax
import jax.numpy as jnp
import pytest

import jspec
from jspec import decoding
from jspec._xla import backend, one_graph
from jspec.testing import PrefixLM

MODEL = PrefixLM()
PARAMS = MODEL.init()
DRAFTER = jspec.PromptLookup(num_speculative_tokens=3)


def tokens(prompt):
    result = jspec.decode(MODEL, PARAMS, prompt, drafter=DRAFTER, max_new_tokens=9)
    return result.tokens


def test_it_is_off_unless_asked_and_for_gpus_alone(monkeypatch):
    monkeypatch.delenv(one_graph.SWITCH, raising=False)
    for platform in ("cpu", "gpu", "tpu"):
        with backend.planned(platform):
            assert not one_graph.asked()
    monkeypatch.setenv(one_graph.SWITCH, "1")
    for platform in ("cpu", "gpu", "tpu"):
        with backend.planned(platform):
            assert one_graph.asked() == (platform == "gpu")
    monkeypatch.setenv(one_graph.SWITCH, "0")
    with backend.planned("gpu"):
        assert not one_graph.asked()
    monkeypatch.setenv(one_graph.SWITCH, "yes")
    with pytest.raises(ValueError, match="JSPEC_ONE_GRAPH is 'yes'; it may be 0 or 1"):
        one_graph.asked()


@pytest.mark.slow
def test_options_change_no_token_and_are_left_out_of_a_program_around(monkeypatch):
    """XLA for a CPU takes the options, which say nothing to it."""
    prompt = jnp.array([[1, 2, 3, 1, 2]])
    wanted = tokens(prompt)
    programs = decoding.decode_rounds._in_one_graph._cache_size()
    monkeypatch.setenv(one_graph.SWITCH, "1")
    with backend.planned("gpu"):
        assert (tokens(prompt) == wanted).all()
        assert decoding.decode_rounds._in_one_graph._cache_size() == programs + 1
        assert (jax.jit(tokens)(prompt) == wanted).all()
        assert decoding.decode_rounds._in_one_graph._cache_size() == programs + 1
