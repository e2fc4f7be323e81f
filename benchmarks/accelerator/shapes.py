"""The shapes that are measured, with weights, caches and states made on the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from jspec.models import Llama, LlamaConfig
from jspec.protocols import CausalLM, Drafter
from jspec.types import PyTree, State

PROMPT = 16
"""Tokens of the prompt that states are shaped for; its forward pass never runs."""


@dataclass(frozen=True)
class Shape:
    """The shapes of a target and a draft model, and the sizes that are measured with them."""

    name: str
    target: LlamaConfig
    draft: LlamaConfig
    dtype: str
    widths: Mapping[int, tuple[int, ...]]
    """Tokens of a forward pass of each of B rows, by B."""
    budgets: tuple[int, ...]
    """Of DySpec's trees."""
    masks: tuple[int, ...]
    """Nodes of the random trees whose attention is timed."""
    past: int
    """Positions of the cache that are live."""
    capacity: int
    checkpoint: str
    """Real weights, whose bits are compared and whose answers are timed."""
    text: int = 96
    """Tokens of a text and of an answer."""
    questions: int = 6
    repeats: int = 5
    num_rounds: int = 32
    """Rounds of a sample."""

    def model(self, config: LlamaConfig) -> Llama:
        """Makes a model of one of the configs."""
        dtype = getattr(jnp, self.dtype)
        return Llama(config, dtype=dtype, param_dtype=dtype)

    @cached_property
    def target_params(self) -> PyTree:
        """Random weights, made on the device."""
        return random_weights(self.model(self.target))

    @cached_property
    def draft_params(self) -> PyTree:
        """Random weights of the draft model."""
        return random_weights(self.model(self.draft))


SHAPES = {
    shape.name: shape
    for shape in (
        # Llama-2-7B, and the draft model of 68M that DySpec and SpecInfer have.
        Shape(
            "7B",
            LlamaConfig(32000, 4096, 11008, 32, 32, 32, 128, 4096),
            LlamaConfig(32000, 768, 3072, 2, 12, 12, 64, 2048),
            dtype="bfloat16",
            widths={1: (1, 4, 8, 16, 31, 64, 81, 128, 256, 768), 4: (1, 8, 32), 16: (1, 4, 8)},
            budgets=(64, 768),
            masks=(256, 512, 1024, 2048),
            past=512,
            capacity=1024,
            checkpoint="smollm2-135m",
        ),
        # For tests.
        Shape(
            "tiny",
            LlamaConfig(64, 16, 24, 2, 2, 1, 8, 256),
            LlamaConfig(64, 8, 16, 1, 1, 1, 8, 256),
            dtype="float32",
            widths={1: (1, 4), 2: (2,)},
            budgets=(8,),
            masks=(16,),
            past=8,
            capacity=128,
            checkpoint="jspec-800k",
            text=8,
            questions=1,
            repeats=1,
            num_rounds=4,
        ),
    )
}


def random_weights(model: Llama) -> PyTree:
    """Makes weights as at the start of training, leaf by leaf: few programs, and no host copy."""
    tokens, mask = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    leaves, structure = jax.tree.flatten(
        jax.eval_shape(model.init, jax.random.key(0), tokens, tokens, mask)
    )
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return structure.unflatten(
        _normal(key, leaf.shape, leaf.dtype) if len(leaf.shape) > 1
        else jnp.ones(leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    )  # fmt: skip


@partial(jax.jit, static_argnames=("shape", "dtype"))
def _normal(key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
    # In float32 first: normal numbers of 8 bits can be infinite.
    return (0.02 * jax.random.normal(key, shape, jnp.float32)).astype(dtype)


def random_cache(model: CausalLM, batch: int, past: int, capacity: int) -> jspec.KVCache:
    """Makes a cache of random keys and values, `past` of its positions live in every row."""
    empty = jax.eval_shape(partial(model.init_memory, batch, capacity))
    leaves, structure = jax.tree.flatten((empty.keys, empty.values))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    filled = [_normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    held = structure.unflatten(filled)
    return jspec.KVCache(*held, lengths=jnp.full(batch, past, jnp.int32))


def random_state(
    shape: Shape, drafter: Drafter, drafter_params: PyTree, temperature: float
) -> State:
    """Makes a state in the middle of a generation, as `jspec.prefill` shapes it, without a pass.

    The drafter knows nothing of the text before; its rounds cost what they always cost.
    """
    model, prompt = shape.model(shape.target), np.zeros((1, PROMPT), np.int32)

    def begin(params: PyTree, drafter_params: PyTree) -> State:
        return jspec.prefill(
            model, params, prompt, drafter=drafter, drafter_params=drafter_params,
            max_new_tokens=shape.capacity - PROMPT,
            sampling=jspec.Sampling(temperature=temperature), key=0,
        )  # fmt: skip

    shapes = jax.eval_shape(begin, shape.target_params, drafter_params)
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        replace(shapes, memory=None, drafter_state=None),
    )
    return replace(
        zeros,
        memory=random_cache(model, 1, shape.past, shape.capacity),
        positions=jnp.full(1, shape.past, jnp.int32),
        capacity=shape.capacity,
        # Its own arrays: the state is donated, and leaves may be shared.
        drafter_state=jax.tree.map(jnp.array, drafter.init(1, shape.capacity, None)),
        controls=replace(
            zeros.controls,
            limits=jnp.full(1, shape.capacity, jnp.int32),
            eos=jnp.full_like(zeros.controls.eos, -1),
        ),
    )
