"""Passes of the target, of a draft model and of heads, and the kernel of tree attention."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from benchmarks.accelerator.shapes import Measurements, Shape, random_cache, random_weights
from benchmarks.accelerator.timing import per_call
from benchmarks.dyspec import kernel_times
from benchmarks.dyspec.blocks import ORDERS, recursive, reordered
from jspec.arrays.top_k import top_k
from jspec.models import Llama, LlamaConfig
from jspec.types import PyTree

STEPS, WIDTH = 3, 4
"""Draft steps and nodes of a level of Lyanna's and EAGLE's trees (Fig. 13 of Lyanna)."""
CHAIN = 8
"""Draft steps that are timed one after another."""


def passes(shape: Shape) -> Measurements:
    """Yields the seconds of a forward pass of N tokens of the target."""
    for width in shape.widths:
        yield {"width": width}, partial(_forward, shape, shape.target, shape.target_params, width)


def _forward(shape: Shape, config: LlamaConfig, params: PyTree, width: int) -> dict:
    model = shape.model(config)
    given = chain(model, 1, width, shape.past, shape.capacity)
    run = jax.jit(model.apply)
    finite = bool(jnp.isfinite(run(params, *given).logits).all())
    return {"seconds": per_call(lambda: run(params, *given), shape.repeats), "finite": finite}


def chain(model: Llama, batch: int, width: int, past: int, capacity: int) -> tuple:
    """Makes the arguments of a pass: a chain of random tokens behind what the cache holds."""
    tokens = jax.random.randint(jax.random.key(2), (batch, width), 0, model.vocab_size)
    positions = jnp.broadcast_to(past + jnp.arange(width), (batch, width))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (batch, width, width))
    return tokens, positions, mask, random_cache(model, batch, past, capacity)


def heads(shape: Shape) -> Measurements:
    """Yields the seconds of EAGLE's draft and of Lyanna's, by part.

    EAGLE runs the layer and scores its nodes level by level. Lyanna runs the layer three times on
    one state, and scores the three states at once. Then each has its softmax and top-k.
    """
    config = replace(shape.target, num_layers=1)
    for batch in shape.batches:
        for part in ("EAGLE, layer and head", "Lyanna, layer and head", "EAGLE, softmax and top-k",
                     "Lyanna, softmax and top-k"):  # fmt: skip
            yield {"part": part, "batch": batch}, partial(_head, shape, config, part, batch)


def _head(shape: Shape, config: LlamaConfig, part: str, batch: int) -> dict:
    model = shape.model(config)
    params = random_weights(model)
    levels = [1, *[WIDTH] * (STEPS - 1)] if part.startswith("EAGLE") else [1] * STEPS
    given = [chain(model, batch, width, shape.past, shape.capacity) for width in levels]

    def eagle(params: PyTree, given: list[tuple]) -> Array:
        token = jnp.zeros((), jnp.int32)
        for tokens, *rest in given:
            token = model.apply(params, tokens + token, *rest).logits.argmax() % 2
        return token

    def lyanna(params: PyTree, given: list[tuple]) -> Array:
        token, states = jnp.zeros((), jnp.int32), []
        for tokens, *rest in given:
            states.append(model.apply(params, tokens + token, *rest).hidden)
            token = (states[-1].sum() > 0).astype(jnp.int32)
        return jnp.concatenate(states, axis=1) @ params["params"]["embed"].T

    def choose(logits: Array) -> Any:
        return jax.nn.softmax(logits), top_k(logits, WIDTH)

    if part.endswith("head"):
        run = partial(jax.jit(eagle if part.startswith("EAGLE") else lyanna), params, given)
    else:
        nodes = sum(levels)
        logits = jax.random.normal(jax.random.key(3), (batch, nodes, model.vocab_size))
        run = partial(jax.jit(choose), logits)
    return {"seconds": per_call(run, shape.repeats)}


def kernels(shape: Shape) -> Measurements:
    """Yields the seconds of tree attention by order of the nodes: Table 5 and Fig. 8 of DySpec."""
    random = np.random.default_rng(0)
    count, dim = (64, 128) if jax.default_backend() != "cpu" else (1, 16)
    timed = kernel_times.KERNELS if jax.default_backend() == "gpu" else ()
    for nodes in shape.masks:
        tree = recursive(random, nodes)
        for order in ("as grown", "depth first"):
            mask = reordered(tree, ORDERS[order])

            def measure(mask: Any = mask) -> dict:
                seconds, errors = kernel_times.measure(mask, count, dim, timed)
                return {"seconds": seconds, "errors": errors}

            yield {"nodes": nodes, "order": order}, measure


def drafts(shape: Shape) -> Measurements:
    """Yields the seconds of a draft model: of N tokens, of steps in turn, of DySpec's trees."""
    model = shape.model(shape.draft)
    for width in shape.widths[:-1]:
        yield (
            {"what": "pass", "width": width},
            partial(_forward, shape, shape.draft, shape.draft_params, width),
        )
    yield {"what": "steps in turn", "width": CHAIN}, partial(_steps, shape, model)


def _steps(shape: Shape, model: Llama) -> dict:
    tokens, positions, mask, cache = chain(model, 1, 1, shape.past, shape.capacity)

    def step(_, token: Int[Array, "1 1"]) -> Int[Array, "1 1"]:
        found = model.apply(shape.draft_params, token, positions, mask, cache)
        return found.logits.argmax(-1).astype(jnp.int32)

    run: Callable = jax.jit(lambda token: jax.lax.fori_loop(0, CHAIN, step, token))
    return {"seconds": [one / CHAIN for one in per_call(lambda: run(tokens), shape.repeats)]}
