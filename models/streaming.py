"""The streaming of layers from the host's memory, one step ahead.

Where the arrays are decides: a forward pass whose layers' weights are in `pinned_host` memory
streams them, and gives the numbers of one whose weights are on the device. A round then takes as
long as the copy of all layers, however many nodes it verifies until computing takes as long: large
trees pay (DySpec, Xiong et al. 2024, runs 70B with budgets of 768 like this).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec.types import PyTree

DEVICE, HOST = "device", "pinned_host"
"""Kinds of memory: the device's, and the one of the host that a device reads by itself."""


def on_host(weights: PyTree) -> bool:
    """Returns whether some of the weights are in the host's memory."""
    return any(
        jax.typeof(leaf).memory_space == jax.memory.Space.Host for leaf in jax.tree.leaves(weights)
    )


def streamed(stack_shape: tuple[int, ...]) -> bool:
    """Returns whether a stack of this shape goes to the host: one of matrices.

    Vectors are small, and XLA for TPU cannot take one of 16 bits out of the host's memory.
    """
    return len(stack_shape) > 2


def on_device(weights: PyTree) -> PyTree:
    """Returns the weights on the device; what is there already is not copied."""

    def move(leaf: Array) -> Array:
        return jax.device_put(leaf, jax.memory.Space.Device) if on_host(leaf) else leaf

    return jax.tree.map(move, weights)


def fetched(stacks: PyTree, layer: Int[Array, ""] | int) -> PyTree:
    """Returns one layer's weights out of stacks, on the device."""
    one = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, layer, 0, False), stacks)
    return on_device(one)


def over_layers(
    step: Callable[[PyTree, tuple[Array, PyTree]], tuple[PyTree, PyTree]],
    carry: PyTree,
    stacks: PyTree,
    count: int,
) -> tuple[PyTree, PyTree]:
    """Returns `jax.lax.scan` of steps that get a layer's number and its weights.

    Of weights in the host's memory, the next layer's are on their way while a layer computes. The
    last step fetches its own again: a step that fetched nothing would be another program.

    Args:
        step: from (carry, (number, weights)) to the carry and what the layer gives.
        carry: before the first layer.
        stacks: the weights, with an axis of layers in front.
        count: the number of layers.
    """
    numbers = jnp.arange(count, dtype=jnp.int32)
    if not on_host(stacks):
        return jax.lax.scan(step, carry, (numbers, stacks))

    def ahead(held: PyTree, number: Array) -> tuple[PyTree, PyTree]:
        carry, weights = held
        coming = fetched(stacks, jnp.minimum(number + 1, count - 1))
        carry, given = step(carry, (number, weights))
        return (carry, coming), given

    (carry, _), given = jax.lax.scan(ahead, (carry, fetched(stacks, 0)), numbers)
    return carry, given
