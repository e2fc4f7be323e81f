"""A draft model that is some of its target's layers."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from jspec._validate.errors import InputError
from jspec.models import columns, eight_bits, stacking
from jspec.models.llama import Llama
from jspec.types import PyTree


def prune(target: Llama, params: PyTree, layers: Sequence[int]) -> tuple[Llama, PyTree]:
    """Returns a draft model that is some of its target's layers, in float32, and its weights.

    Embedding, norms and head are the target's. What it drafts is of little use before it is trained
    on the target's distributions. As DistilBERT (Sanh et al. 2019, section 3), which begins with
    every second layer of its teacher.
    """
    if not isinstance(target, Llama) or eight_bits.low_precision(target.param_dtype):
        raise InputError(
            "keep_layers takes layers of a Llama in floating point, and the target is "
            f"{type(target).__name__} in {eight_bits.dtype_name(target.param_dtype)}; leave it out"
        )
    config, every = target.config, range(target.num_layers)
    if not layers or list(layers) != sorted({*layers} & {*every}):
        raise InputError(
            f"keep_layers is {','.join(map(str, layers))} and the target has layers 0 to "
            f"{every[-1]}; use some of them, in ascending order"
        )
    kinds = tuple(config.layers[layer] for layer in layers) if config.layers else ()
    weights = stacking.unstack_layers(columns.relaid(params, target.fused, target.tp_size, 1))[
        "params"
    ]
    subset = {name: part for name, part in weights.items() if not name.startswith("layers_")}
    subset |= {f"layers_{place}": weights[f"layers_{layer}"] for place, layer in enumerate(layers)}
    model = Llama(replace(config, num_layers=len(layers), layers=kinds))
    # Copies: training gives its weights away, and goes on reading the target's.
    return model, {"params": jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), subset)}
