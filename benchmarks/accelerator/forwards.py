"""The seconds of a forward of N tokens, t(N), by batch, beside what the device could do at best."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

import jspec
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale, random_cache
from benchmarks.accelerator.timing import Compiled, compiled, per_call
from jspec.models import attention
from jspec.models.linear import unembed
from jspec.models.llama import Block, Llama, LlamaConfig
from jspec.models.norms import RMSNorm
from jspec.types import PyTree


class Inputs(NamedTuple):
    """The arguments of a forward of a chain of N tokens behind what the cache holds."""

    tokens: Int[Array, "B N"]
    positions: Int[Array, "B N"]
    mask: Bool[Array, "B N N"]
    cache: jspec.KVCache


class Forward(NamedTuple):
    """A way to run the layers, ready to be called."""

    run: Callable[[], Any]
    program: Compiled | None


def inputs(model: Llama, batch: int, width: int, past: int, capacity: int) -> Inputs:
    """A chain of `width` random tokens in each of `batch` rows."""
    tokens = jax.random.randint(jax.random.key(2), (batch, width), 0, model.vocab_size)
    positions = jnp.broadcast_to(past + jnp.arange(width), (batch, width))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (batch, width, width))
    return Inputs(tokens, positions, mask, random_cache(model, batch, past, capacity))


def whole(model: Llama, params: PyTree, given: Inputs) -> Forward:
    """All layers in one program, as decoding runs them."""
    program = compiled(jax.jit(model.apply), params, *given)
    return Forward(lambda: program.run(params, *given), program)


def by_layer(model: Llama, params: PyTree, given: Inputs) -> Forward:
    """One layer's program, started for every layer: it compiles in the time of one."""
    weights, cache = params["params"], given.cache
    enter, one, leave = (jax.jit(partial(part, model)) for part in (_enter, block, _leave))

    def run() -> Any:
        x, positions = enter(weights["embed"], given.tokens, given.positions)
        new = []
        for layer in range(model.num_layers):
            x, *kv = one(
                weights[f"layers_{layer}"], x, positions, given.mask,
                cache.keys[layer], cache.values[layer], cache.lengths,
            )  # fmt: skip
            new.append(kv)
        return leave(weights["norm"], _table(weights), x), new

    return Forward(run, None)


WHOLE, BY_LAYER = "one program", "layer by layer"
WAYS = {WHOLE: whole, BY_LAYER: by_layer}
"""Ways to run the layers of a forward, by their names in rows."""


def _enter(model: Llama, embed: Array, tokens: Array, positions: Array) -> Any:
    return embed[tokens].astype(model.dtype), positions


def block(
    model: Llama, weights: PyTree, x: Array, positions: Any, mask: Array,
    keys: Array, values: Array, lengths: Array,
) -> Any:  # fmt: skip
    past = attention.Past(attention.Cached(keys, values, lengths), None)
    block = Block(model.config, model.dtype, model.param_dtype)
    return block.apply({"params": weights}, x, positions, mask, past)


def _leave(model: Llama, norm: PyTree, table: Array, x: Array) -> Array:
    last = RMSNorm(model.config.norm_eps, model.dtype, model.param_dtype)
    return unembed(last.apply({"params": norm}, x), table)


def _table(weights: PyTree) -> Array:
    return weights.get("head", weights["embed"])


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


def plan(scale: Scale) -> list[tuple[str, int, int]]:
    """Returns the cells (way, batch, width), those first that say most."""
    way = BY_LAYER if scale.by_layer else WHOLE
    one, *others = scale.batches
    grid = [(way, one, width) for width in scale.widths]
    whole = [(WHOLE, one, width) for width in scale.widths[:2]]
    rest = [(way, batch, width) for batch in others for width in scale.widths]
    return list(dict.fromkeys([*grid, *whole, *rest]))


def measure(cells: Cells, scale: Scale) -> None:
    """Writes one row for each way, batch and width."""
    model, itemsize = scale.model, jnp.dtype(scale.dtype).itemsize
    for way, batch, width in plan(scale):

        def row(way: str = way, batch: int = batch, width: int = width) -> dict:
            given = inputs(model, batch, width, scale.past, scale.capacity)
            forward = WAYS[way](model, scale.params, given)
            seconds = per_call(forward.run, scale.repeats)
            logits = jax.tree.leaves(forward.run())[0]
            return {
                "seconds": seconds,
                **(forward.program.about() if forward.program else {}),
                "bytes": read_bytes(model.config, itemsize, batch, width, scale.capacity),
                "operations": operations(model.config, batch, width, scale.capacity),
                "finite": bool(jnp.isfinite(logits).all()),
            }

        cells.run(row, way=way, batch=batch, width=width)
