"""What a forward, a chunk of a prompt and a draft ask of every device: flops, bytes, messages."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from jspec.costs import roofline
from jspec.costs.devices import Device
from jspec.planning import layout
from jspec.planning.products import Product, products
from jspec.protocols import CausalLM, Drafter
from jspec.round import frame
from jspec.types import PromptChunk, PyTree, State

_SLOTS = 128
"""Slots of the cache that a trace is made for; the products with it grow with its size."""


@dataclass(frozen=True)
class DeviceWork:
    """What one device does, and how much of its memory that takes beside what it holds."""

    tokens: int
    """Of all rows that the device has."""
    flops: float
    read: float
    """Bytes that it reads: the weights, and the cache up to its last slot."""
    sent: float
    """Bytes that it sends to its neighbours: partial sums, once round the ring."""
    widest: float
    """Bytes of the largest result of a product with weights."""

    def seconds(self, device: Device) -> float:
        """The time by the roofline of a device."""
        return roofline.seconds(device, self.tokens, self.flops, self.read, self.sent)


def score(
    model: CausalLM, params: PyTree, rows: int, nodes: int, capacity: int, mesh: Any
) -> DeviceWork:
    """One forward over the nodes of each row's tree, after a cache.

    Args:
        model: the target.
        params: shapes of its weights, with their shardings.
        rows: of the batch.
        nodes: of a tree, its root among them.
        capacity: of the cache, all of which count as read.
        mesh: the devices.

    Example:
        >>> import jspec
        >>> target = jspec.models.shapes("llama-8b", dtype="bfloat16")
        >>> once = score(target.model, target.params, 1, 1, 1024, layout.mesh_of())
        >>> round(once.flops / 1e9), round(once.read / 1e9)  # two for each weight, 2 bytes each
        (16, 15)
    """

    def forward(params, cache, tokens, positions, mask):
        output = model.apply(params, tokens, positions, mask, cache)
        return output

    tokens = jax.ShapeDtypeStruct((rows, nodes), jnp.int32)
    mask = jax.ShapeDtypeStruct((rows, nodes, nodes), jnp.bool_)
    cache = layout.model_memory(model, rows, _SLOTS, mesh)
    given = params, cache, tokens, tokens, mask
    return _work(forward, given, 1, rows * nodes, _longer(model, capacity), mesh, _heads(model))


def read_prompt(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, memory: PyTree,
    rows: int, size: int, capacity: int, mesh: Any,
) -> DeviceWork:  # fmt: skip
    """One chunk of every row's prompt, as target and drafter read it.

    Scores are counted only if the drafter reads them.

    Args:
        model: the target.
        params: shapes of its weights, with their shardings.
        drafter: of the call.
        drafter_params: shapes of its weights.
        memory: shapes of its memory.
        rows: of the batch.
        size: tokens of a chunk.
        capacity: of the cache, half of which count as read: the mean over a long prompt.
        mesh: the devices.
    """

    def chunk(params, cache, drafter_params, memory, text, positions, mask, counts):
        output = model.apply(params, text[:, :-1], positions, mask, cache)
        chunk = PromptChunk(text, counts, positions[:, 0], replace(output, tentative=None))
        return output.tentative, drafter.prefill(drafter_params, memory, chunk)

    numbers = partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    mask = jax.ShapeDtypeStruct((rows, size, size), jnp.bool_)
    given = numbers((rows, size + 1)), numbers((rows, size)), mask, numbers((rows,))
    cache = layout.model_memory(model, rows, _SLOTS, mesh)
    whole = params, cache, drafter_params, memory, *given
    return _work(chunk, whole, 1, rows * size, _longer(model, capacity // 2), mesh, _heads(model))


def draft(
    drafter: Drafter, drafter_params: PyTree, state: State, capacity: int, mesh: Any
) -> DeviceWork:
    """One draft of every row.

    Args:
        drafter: of the call.
        drafter_params: shapes of its weights, with their shardings.
        state: shapes of a generation's.
        capacity: of the cache.
        mesh: the devices.
    """

    def propose(drafter_params, state):
        return drafter.draft(drafter_params, state.drafter_state, frame(state))

    rows = state.root.shape[0]
    return _work(propose, (drafter_params, state), None, rows, (), mesh)


def _work(
    function: Callable[..., Any],
    arguments: Sequence[PyTree],
    place: int | None,
    tokens: int,
    longer: Sequence[float],
    mesh: Any,
    heads: int = 0,
) -> DeviceWork:
    """The work of a function.

    Args:
        function: of `arguments`.
        arguments: shapes, with shardings where they are split.
        place: which of the arguments is the memory of `_SLOTS` slots; None: there is none, so that
            weights may be read several times, by forward passes one after the other.
        tokens: of all rows.
        longer: how many times as much of each of its leaves really counts.
        mesh: the devices.
        heads: of the queries; 0: it is not known.
    """
    leaves = jax.tree.leaves(arguments)
    before = [len(jax.tree.leaves(part)) for part in arguments]
    start = None if place is None else sum(before[:place])
    cached = range(start, start + before[place]) if start is not None and place else range(0)
    data, model = mesh.shape["data"], mesh.shape["model"]
    # What is made of weights is split as these are; attention as rows and heads.
    split = max((layout.parts(leaves[number]) for number in cached), default=data)
    if heads and heads % model == 0:
        # XLA splits the heads of queries, even where every device holds all keys and values.
        split = data * model
    flops, sent, widest, read = 0.0, 0.0, 0.0, defaultdict(float)
    for product in products(function, *arguments):
        if product.leaf is None:
            flops += product.flops / split
        elif product.leaf in cached:
            more = longer[product.leaf - cached.start]
            flops += more * product.flops / split
            read[product.leaf] += more * product.read / layout.parts(leaves[product.leaf])
        else:
            leaf = leaves[product.leaf]
            shares = layout.parts(leaf)
            flops += product.flops / shares / data
            read[product.leaf] += product.read / shares
            summed = _is_summed(product, leaf)
            kept = 1 if summed else shares
            own = product.output / product.runs / data / kept
            widest = max(widest, own if product.flops else 0.0)
            if summed:
                sent += 2 * (model - 1) / model * product.output / data
    if place is not None:
        # A weight is read once by a forward, however many blocks of experts it is cut into.
        for number in read:
            if number not in cached:
                read[number] = min(read[number], layout.shard_bytes(leaves[number]))
    return DeviceWork(-(-tokens // data), flops, sum(read.values()), sent, widest)


def _longer(model: CausalLM, capacity: int) -> list[float]:
    """How many times as large each leaf of the memory is as with `_SLOTS` slots.

    Keys and values grow with the slots; a recurrent state is as it is.
    """
    memories = (
        jax.tree.leaves(jax.eval_shape(partial(model.init_memory, 1, size)))
        for size in (_SLOTS, 2 * _SLOTS)
    )
    return [
        1.0 if short.size == long.size else capacity / _SLOTS
        for short, long in zip(*memories, strict=True)
    ]


def _heads(model: Any) -> int:
    """The heads of a model's queries; 0 where its config does not say."""
    return getattr(getattr(model, "config", None), "num_heads", 0)


def _is_summed(product: Product, leaf: Any) -> bool:
    """Whether the devices of the weights add up what each has of a product.

    So it is where the axis that is summed over is the one that is split: behind attention, behind
    the MLP, and in the lookup of tokens in a table that is split by tokens.
    """
    split = getattr(leaf, "sharding", None)
    if split is None or not leaf.shape:
        return False
    looked_up = not product.flops
    if looked_up and len(leaf.shape) > 2:
        return False  # matrices of experts, and no table
    # Weights are [O, I], one matrix or several; a table is looked up by its rows.
    axis = 0 if looked_up else -1
    shard = split.shard_shape(leaf.shape)
    return shard[axis] != leaf.shape[axis] and prod(product.contracted) == leaf.shape[axis]
