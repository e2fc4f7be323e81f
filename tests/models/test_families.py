"""Every family against what `transformers` recorded: logits, whole and in parts, and tokens."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny
from safetensors.numpy import load_file

import jspec
from jspec._xla import backend
from jspec.memory import KVCache
from jspec.models import attention
from jspec.testing.model_subject import above

TOLERANCE = 1e-4
SLOTS = 24
PAST = np.array([8, 5])
"""Committed tokens of the two rows."""
# A tree behind the past: root, its children a and b, a's child c, b's children d and e.
PARENTS = np.array([-1, 0, 0, 1, 2, 2])
PATHS = ([0, 1, 3], [0, 2, 4], [0, 2, 5])


def test_logits_are_those_of_transformers(variant):
    output = variant.forward(variant.params, *tiny.causal(variant.tokens), None)
    np.testing.assert_allclose(output.logits, variant.logits, atol=TOLERANCE, rtol=0)
    assert output.logits.dtype == jnp.float32
    assert variant.model.vocab_size == output.logits.shape[-1]
    assert output.hidden is not None


def test_a_tree_behind_a_cache_scores_as_its_paths_do(variant):
    """Rows of unequal pasts; siblings do not see each other; no cached slot beyond is read."""
    cache, (nodes, positions, mask) = tree_behind_a_cache(variant)
    scored = variant.forward(variant.params, nodes, positions, mask, cache)

    for path in PATHS:
        texts = variant.tokens.copy()
        for row, past in enumerate(PAST):
            texts[row, past : past + len(path)] = nodes[row, path]
        whole = variant.forward(variant.params, *tiny.causal(texts), None)
        for row, past in enumerate(PAST):
            for field in ("logits", "hidden"):
                np.testing.assert_allclose(
                    getattr(scored, field)[row, jnp.asarray(path)],
                    getattr(whole, field)[row, past : past + len(path)], atol=TOLERANCE, rtol=0,
                )  # fmt: skip


def tree_behind_a_cache(variant):
    """A cache with stale slots, and the tokens, positions and mask of a tree behind its rows."""
    prompt = variant.forward(variant.params, *tiny.causal(variant.tokens), None)
    batch, _ = variant.tokens.shape
    every = jnp.broadcast_to(jnp.arange(PAST.max()), (batch, PAST.max()))
    cache = variant.model.commit(
        stale(variant.model.init_memory(batch, SLOTS)), prompt.tentative, every, jnp.asarray(PAST),
    )  # fmt: skip
    nodes = np.random.default_rng(1).integers(0, variant.model.vocab_size, (batch, len(PARENTS)))
    seen = above(PARENTS)
    positions = jnp.asarray(PAST)[:, None] + seen.sum(-1) - 1
    mask = jnp.broadcast_to(seen, (batch, *seen.shape))
    return cache, (jnp.asarray(nodes, jnp.int32), positions, mask)


def stale(state):
    """The memory with wrong numbers in its slots: a forward pass that read one would show it.

    A state has no slots, and all of it counts.
    """

    def wrong(cache):
        return jax.tree.map(lambda array: array + 7 * (array.ndim > 1), cache)

    return each_cache(wrong, state)


def each_cache(change, state):
    """A model's memory with its caches changed."""

    def of_part(part):
        return change(part) if isinstance(part, KVCache) else part

    return jax.tree.map(of_part, state, is_leaf=lambda part: isinstance(part, KVCache))


# Of these the first is quick; test_latent.py has what is quick of recurrent states.
NAMES = (
    *("deepseek_v3", "qwen3_next", "gpt_oss", "gemma4", "granite4", "glm4_moe", "qwen3_5"),
    *("deepseek_v2", "gemma4_moe", "glm4_moe_lite", "gemma4_unified", "qwen3_5_moe"),
    "granite4_dense",
)
TREE = jspec.tree.branching([3, 2, 1])
BEHIND = [("deepseek_v3", False), ("gpt_oss", True)]


@pytest.fixture
def given(request, recorded, fixtures):
    """The model, and 40 greedy tokens of `transformers` after each of its texts."""
    return recorded(request.param), load_file(fixtures / request.param / "reference.safetensors")


@pytest.mark.parametrize("given", quick.only(NAMES, NAMES[0]), indirect=True)
def test_40_greedy_tokens_are_those_of_transformers(given):
    """By trees, of what `transformers` decodes step by step."""
    check_greedy(*given)


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
    with backend.plan_for("gpu"):
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
