"""The target's forward pass, in the precision of its numbers."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec.protocols import CausalLM
from jspec.types import Output, PyTree


def apply(
    model: CausalLM,
    params: PyTree,
    tokens: Int[Array, "B N"],
    positions: Int[Array, "B N"],
    mask: Bool[Array, "B N N"],
    memory: PyTree,
) -> Output:
    """Returns the forward pass; a model in float32 multiplies in float32.

    By default a GPU rounds float32 to TF32 in products and a TPU to bfloat16, and then tokens that
    are scored together differ from tokens that are scored alone. `jax_default_matmul_precision`
    has its way where it is set.

    A model may ask for one shape of all rounds (`jspec.models.BatchInvariant`): nodes that see
    themselves alone then fill up the others. So they do on a GPU for a single token: of two XLA
    makes fewer kernels, and products with the bits of larger ones.
    """
    count, min_count = tokens.shape[1], num_tokens_of(model)
    if tokens.size == 1 and getattr(memory, "room", 0):
        min_count = max(min_count, 2)
    if more := max(min_count - count, 0):
        padding = ((0, 0), (0, more))
        tokens, positions = (jnp.pad(x, padding, mode="edge") for x in (tokens, positions))
        mask = jnp.pad(mask, (*padding, (0, more))) | jnp.eye(count + more, dtype=bool)
    with jax.default_matmul_precision(precision_of(model, params)):
        output = model.apply(params, tokens, positions, mask, _open(memory, mask, positions))
    if min_count == 1:
        return output
    # Without the barrier XLA would fuse the pass with its readers, which differ by program.
    output = jax.lax.optimization_barrier(output)
    logits, hidden = jax.tree.map(lambda x: x[:, :count], (output.logits, output.hidden))
    return replace(output, logits=logits, hidden=hidden)


def _open(memory: PyTree, mask: Bool[Array, "B N N"], positions: Int[Array, "B N"]) -> PyTree:
    """Returns a memory whose caches, where they can, take the pass's tokens into their slots."""

    def can(part: Any) -> bool:
        return hasattr(part, "opened")

    return jax.tree.map(
        lambda part: part.opened(mask, positions) if can(part) else part, memory, is_leaf=can
    )


def num_tokens_of(model: CausalLM) -> int:
    """Returns the fewest tokens of a model's forward pass."""
    return getattr(getattr(model, "attention_impl", None), "num_tokens", 1)


def precision_of(model: CausalLM, params: PyTree) -> str | None:
    """Returns the precision of a model's products, as JAX names it; None: the device's default."""
    config: Any = jax.config  # its names are made when JAX starts
    precision = config.jax_default_matmul_precision
    return "highest" if precision is None and _in_float32(model, params) else precision


def _in_float32(model: CausalLM, params: PyTree) -> bool:
    """Returns whether activations are float32, as the model's dtype or else its weights say."""
    if (dtype := getattr(model, "dtype", None)) is not None:
        return jnp.dtype(dtype) == jnp.float32
    narrow = jnp.bfloat16, jnp.float16
    return not any(jnp.result_type(leaf) in narrow for leaf in jax.tree.leaves(params))
