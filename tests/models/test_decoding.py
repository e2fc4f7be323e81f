"""Families whose memory or experts are of their own kind, as the engine runs them."""

import itertools

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import jspec
import jspec.models
from jspec._xla import backend
from jspec.memory import KVCache
from jspec.models import attention

# The first is quick; test_memories.py has what is quick of recurrent states.
NAMES = (
    *("deepseek_v3", "qwen3_next", "gpt_oss", "gemma4", "granite4", "glm4_moe", "qwen3_5"),
    *("deepseek_v2", "gemma4_moe", "glm4_moe_lite", "gemma4_unified", "qwen3_5_moe"),
    "granite4_dense",
)
TREE = jspec.tree.branching([3, 2, 1])


@pytest.fixture
def given(request, recorded, fixtures):
    """The model, and 40 greedy tokens of `transformers` after each of its texts."""
    return recorded(request.param), load_file(fixtures / request.param / "reference.safetensors")


def families(*names):
    return pytest.mark.parametrize("given", names, indirect=True)


@families(NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:]))
def test_40_greedy_tokens_are_those_of_transformers(given):
    """By trees, of what `transformers` decodes step by step."""
    check_greedy(*given)


BEHIND = [("deepseek_v3", False), ("gpt_oss", True)]


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        pytest.param(*case, marks=[] if case in BEHIND else pytest.mark.slow)
        for case in itertools.product(NAMES, (False, True))
    ],
    indirect=["given"],
)
def test_and_where_tokens_are_written_behind_the_slots(given, plain, monkeypatch):
    """As on a GPU. Rows end where the memory does but for its room."""
    found, reference = given
    written = []
    monkeypatch.setattr(attention, "finite", lambda *new: written.append(new[0].shape) or new)
    jax.clear_caches()  # of what was traced as on a CPU
    with backend.planned("gpu"):
        one = found._replace(tokens=found.tokens[:1])
        check_greedy(one, {"greedy": reference["greedy"][:1]}, plain)
    jax.clear_caches()
    # A single token is scored beside another one, which is dropped, but for recurrent states.
    beside = isinstance(found.model.init_memory(1, 1), KVCache)
    assert {shape[2] for shape in written} >= {1 + beside if plain else TREE.num_nodes}


def check_greedy(found, reference, plain=False):
    wanted = reference["greedy"]
    ask = dict(prompt=found.tokens, max_new_tokens=wanted.shape[1])
    drafter = jspec.Autoregressive() if plain else jspec.TokenRecycling(64, TREE, k=3)
    result = jspec.decode(found.model, found.params, drafter=drafter, **ask)
    np.testing.assert_array_equal(result.tokens, wanted)
