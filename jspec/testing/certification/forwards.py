"""The target's logits at a place of a text, by forward passes of one token and of any width.

A forward pass of another width adds the same numbers in another order. What that changes is
measured here, without any drafter: it is the yardstick of what rounding can do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec import decoding
from jspec import tree as trees
from jspec.protocols import CausalLM
from jspec.round import frame, score
from jspec.types import Frame, PyTree, State

_ROWS = 8
"""Texts that are scored together."""
BEST = 8
"""The tokens of largest logit that are looked at in every place."""


def widths_of(**request: Any) -> tuple[int, ...]:
    """Returns the rising widths of a round's forward passes, root included; compiles nothing."""
    names = "params", "drafter_params", "policy_params"
    weights = {name: request.pop(name, None) for name in names}
    state = jax.eval_shape(lambda weights: decoding.prefill(**request, **weights), weights)
    return tuple(1 + width for width in state.stats.widths)


def next_logits(
    model: CausalLM, params: PyTree, texts: Sequence[Sequence[int]]
) -> Float[np.ndarray, "R V"]:
    """Computes the logits after each text, float32, by a round that verifies nothing."""
    parts = []
    for start in range(0, len(texts), _ROWS):
        members = list(texts[start : start + _ROWS])
        prompt, lengths = pad(members + [members[0]] * (_ROWS - len(members)))
        state = decoding.prefill(model, params, prompt, lengths, max_new_tokens=1)
        logits = _score_root(model, params, state)
        parts.append(np.asarray(logits[: len(members)], np.float32))
    return np.concatenate(parts)


@partial(jax.jit, static_argnames="model")
def _score_root(model: CausalLM, params: PyTree, state: State) -> Float[Array, "B V"]:
    tree = trees.root_only(state.root)
    return score(model, params, tree, frame(state), state.memory).logits[:, 0].astype(jnp.float32)


def pad(texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the (prompt, lengths) of token lists, padded on the right."""
    lengths = np.array([len(text) for text in texts], np.int32)
    prompt = np.zeros((len(texts), lengths.max()), np.int32)
    for row, text in enumerate(texts):
        prompt[row, : len(text)] = text
    return prompt, lengths


@dataclass(frozen=True)
class Places:
    """The largest logits of a replayed text, token by token."""

    ids: Int[np.ndarray, "B T K"]
    values: Float[np.ndarray, "B T K"]


def replay(
    model: CausalLM,
    params: PyTree,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    num_tokens: int,
    width: int,
    ids: Int[np.ndarray, "B T K"] | None = None,
) -> Places:
    """Computes the logits that a known text is drawn from, by forward passes of `width` tokens."""
    prompt, lengths = pad(prompts)
    room = -(-num_tokens // width) * width
    fed = np.zeros((len(prompts), room), np.int32)
    for row, (start, text) in enumerate(zip(prompts, texts, strict=True)):
        read = [start[-1], *text][:num_tokens]
        fed[row, : len(read)] = read
    if model.context is not None:
        room = min(room, model.context)
    state = decoding.prefill(model, params, prompt, lengths, max_new_tokens=room)
    if ids is None:
        ids = np.full((len(prompts), num_tokens, min(BEST, model.vocab_size)), -1)
    behind = fed.shape[1] - num_tokens
    padded_ids = np.pad(ids, [(0, 0), (0, behind), (0, 0)], constant_values=-1)
    ids, values = _replay(model, params, state.memory, state.positions, fed, padded_ids, width)
    return Places(np.asarray(ids)[:, :num_tokens], np.asarray(values)[:, :num_tokens])


@partial(jax.jit, static_argnames=("model", "width"))
def _replay(
    model: CausalLM,
    params: PyTree,
    memory: PyTree,
    positions: Int[Array, " B"],
    fed: Int[Array, "B T"],
    ids: Int[Array, "B T K"],
    width: int,
) -> tuple[Int[Array, "B T K"], Float[Array, "B T K"]]:
    batch, length = fed.shape
    chain = trees.chain(width - 1) if width > 1 else None

    def by_chunk(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(batch, length // width, width, *x.shape[2:]), 1, 0)

    def forward(state: tuple[PyTree, Array], chunk: tuple[Array, Array]) -> tuple[Any, Any]:
        (memory, positions), (tokens, chunk_ids) = state, chunk
        tree = trees.root_only(tokens[:, 0]) if chain is None else chain.fill(tokens)
        now = Frame(
            root=tokens[:, 0],
            positions=positions,
            keys=None,
            sampling=None,
            done=jnp.zeros(batch, bool),
        )
        output = score(model, params, tree, now, memory)
        path = jnp.broadcast_to(jnp.arange(width), (batch, width))
        memory = model.commit(memory, output.tentative, path, jnp.full(batch, width))
        logits = output.logits.astype(jnp.float32)
        values, best = jax.lax.top_k(logits, chunk_ids.shape[-1])
        has_id = chunk_ids >= 0
        id_logits = jnp.take_along_axis(logits, jnp.maximum(chunk_ids, 0), axis=-1)
        return (memory, positions + width), (
            jnp.where(has_id, chunk_ids, best),
            jnp.where(has_id, id_logits, values),
        )

    _, (best, values) = jax.lax.scan(forward, (memory, positions), (by_chunk(fed), by_chunk(ids)))

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(batch, length, -1)

    return join(best), join(values)
