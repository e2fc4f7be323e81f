"""Every family against recorded logits of `transformers`, whole and in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from jspec.memory import KVCache
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
