"""The target's forward pass, in the precision of its numbers."""

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
    """
    with jax.default_matmul_precision(precision_of(model, params)):
        return model.apply(params, tokens, positions, mask, memory)


def precision_of(model: CausalLM, params: PyTree) -> str | None:
    """Returns the precision of a model's products, as JAX names it; None: the device's default."""
    config: Any = jax.config  # its names are made when JAX starts
    asked = config.jax_default_matmul_precision
    return "highest" if asked is None and _in_float32(model, params) else asked


def _in_float32(model: CausalLM, params: PyTree) -> bool:
    """Returns whether activations are float32, as the model's dtype or else its weights say."""
    if (dtype := getattr(model, "dtype", None)) is not None:
        return jnp.dtype(dtype) == jnp.float32
    narrow = jnp.bfloat16, jnp.float16
    return not any(jnp.result_type(leaf) in narrow for leaf in jax.tree.leaves(params))
