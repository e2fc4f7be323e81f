"""Activation functions by their Hugging Face names."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import jax
from jaxtyping import Array

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
        "swish": jax.nn.silu,
        "gelu": partial(jax.nn.gelu, approximate=False),
        "gelu_new": partial(jax.nn.gelu, approximate=True),
        "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    }
)
