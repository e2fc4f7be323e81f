"""The seconds of a forward of N tokens, t(N), by batch, beside what the device could do at best."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

import jspec
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale, random_cache
from benchmarks.accelerator.timing import compiled, per_call
from jspec.models import Llama, LlamaConfig


class Inputs(NamedTuple):
    """The arguments of a forward of a chain of N tokens behind what the cache holds."""

    tokens: Int[Array, "B N"]
    positions: Int[Array, "B N"]
    mask: Bool[Array, "B N N"]
    cache: jspec.KVCache


def inputs(model: Llama, batch: int, width: int, past: int, capacity: int) -> Inputs:
    """A chain of `width` random tokens in each of `batch` rows."""
    tokens = jax.random.randint(jax.random.key(2), (batch, width), 0, model.vocab_size)
    positions = jnp.broadcast_to(past + jnp.arange(width), (batch, width))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (batch, width, width))
    return Inputs(tokens, positions, mask, random_cache(model, batch, past, capacity))


def read_bytes(config: LlamaConfig, itemsize: int, batch: int, width: int, capacity: int) -> int:
    """Returns the bytes that a forward has to read: weights, embeddings of tokens, the cache."""
    layer = _products(config) // config.num_layers
    norms = (2 * config.num_layers + 1) * config.hidden_size
    head = config.vocab_size * config.hidden_size
    embeddings = batch * width * config.hidden_size
    position = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    read = layer * config.num_layers + norms + head + embeddings + batch * capacity * position
    return itemsize * read


def operations(config: LlamaConfig, batch: int, width: int, capacity: int) -> int:
    """Counts the additions and multiplications of a forward's products, attention among them."""
    weights = _products(config) + config.vocab_size * config.hidden_size
    attended = 2 * config.num_layers * config.num_heads * config.head_dim * (capacity + width)
    return 2 * batch * width * (weights + attended)


def _products(config: LlamaConfig) -> int:
    """Counts the weights of all layers' products."""
    wide = config.hidden_size
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return config.num_layers * wide * (heads + 3 * config.intermediate_size)


def measure(cells: Cells, scale: Scale) -> None:
    """Writes one row for each batch and width, in one program as decoding runs its layers."""
    model, params = scale.model, scale.params
    for batch in scale.batches:
        for width in scale.widths:

            def row(batch: int = batch, width: int = width) -> dict:
                given = inputs(model, batch, width, scale.past, scale.capacity)
                program = compiled(jax.jit(model.apply), params, *given)
                seconds = per_call(lambda: program.run(params, *given), scale.repeats)
                logits = program.run(params, *given).logits
                return {
                    "seconds": seconds,
                    **program.about(),
                    "finite": bool(jnp.isfinite(logits).all()),
                }

            cells.run(row, batch=batch, width=width)
