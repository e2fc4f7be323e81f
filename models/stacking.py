"""Layers whose weights are stacked, so that one program of a layer runs over all of them.

A group is what one scan runs over: blocks that repeat, one `range` of layers for each of them.
Every other layer of Gemma 2 sees a window, so its 26 layers are `(range(0, 26, 2), range(1, 26,
2))`. The weights of a range have a name that says which layers they are, "layers_0:26:2",
with an axis in front that counts them.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from jspec.types import PyTree

Group = tuple[range, ...]
Path = tuple[str, ...]

_PREFIX = "layers_"


def apart(count: int) -> tuple[Group, ...]:
    """Returns each of `count` layers in a group of its own: nothing is stacked."""
    return tuple((range(layer, layer + 1),) for layer in range(count))


def alike(kinds: Sequence[Hashable]) -> tuple[Group, ...]:
    """Returns as few groups as repetitions allow: from the first layer on, always the longest.

    Args:
        kinds: what each layer is; equal ones have weights of the same shapes and the same program.

    Example:
        >>> alike("aaab")
        ((range(0, 3),), (range(3, 4),))
        >>> alike("ababa")
        ((range(0, 4, 2), range(1, 4, 2)), (range(4, 5),))
    """
    groups, start = [], 0
    while start < len(kinds):
        rest = kinds[start:]
        # Of periods that reach as far, the shortest has the smallest program.
        period = max(range(1, len(rest) + 1), key=lambda size: (_reach(rest, size), -size))
        stop = start + (_reach(rest, period) or period)
        groups.append(tuple(range(start + phase, stop, period) for phase in range(period)))
        start = stop
    return tuple(groups)


def _reach(kinds: Sequence[Hashable], period: int) -> int:
    """Returns the layers that whole periods cover; 0 without repetition."""
    repeats = 1
    while list(kinds[repeats * period : (repeats + 1) * period]) == list(kinds[:period]):
        repeats += 1
    return repeats * period if repeats > 1 else 0


def name(layers: range) -> str:
    """Returns the name of the weights of these layers.

    Example:
        >>> name(range(3, 4)), name(range(1, 26, 2))
        ('layers_3', 'layers_1:26:2')
    """
    if len(layers) == 1:
        return f"{_PREFIX}{layers.start}"
    return f"{_PREFIX}{layers.start}:{layers.stop}:{layers.step}"


def layers_of(name: str) -> range | None:
    """Returns the layers whose stacked weights have this name; None: it is another name.

    Example:
        >>> layers_of("layers_1:26:2"), layers_of("layers_3"), layers_of("embed")
        (range(1, 26, 2), None, None)
    """
    parts = name.removeprefix(_PREFIX).split(":")
    if not name.startswith(_PREFIX) or len(parts) != 3:
        return None
    return range(*map(int, parts))


def stack_layers(params: PyTree, groups: Sequence[Group]) -> PyTree:
    """Returns weights of single layers as those of groups, stacked one group at a time.

    Args:
        params: {"params": ...} as Flax applies them, with "layers_0", "layers_1" and so on.
        groups: of `apart` or `alike`.
    """
    weights = dict(unstack_layers(params)["params"])
    for layers in (layers for group in groups for layers in group):
        if len(layers) > 1:
            parts = [weights.pop(name(range(layer, layer + 1))) for layer in layers]
            weights[name(layers)] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    return {**params, "params": weights}


def unstack_layers(params: PyTree) -> PyTree:
    """Returns weights with each layer's own, however they are stacked.

    Example:
        >>> import jax.numpy as jnp
        >>> held = {"params": {"layers_0:4:2": {"bias": jnp.array([5, 6])}}}
        >>> {name: int(part["bias"]) for name, part in unstack_layers(held)["params"].items()}
        {'layers_0': 5, 'layers_2': 6}
    """
    weights = {}
    for key, part in params["params"].items():
        layers = layers_of(key)
        if layers is None:
            weights[key] = part
            continue
        for index, layer in enumerate(layers):
            weights[name(range(layer, layer + 1))] = jax.tree.map(itemgetter(index), part)
    return {**params, "params": weights}


def collect(
    leaves: Iterable[tuple[Path, jax.Array | np.ndarray]],
    groups: Sequence[Group],
    place: Callable[[Path, tuple[int, ...]], Any],
) -> Iterator[tuple[Path, jax.Array]]:
    """Yields weights in groups, from single layers'.

    So there is never more than the stacks and the weights that are being read. Stacks of arrays of
    NumPy are put into their place when they are whole, one after the other.

    Args:
        leaves: path and array, one layer's at a time.
        groups: of `apart` or `alike`.
        place: gives the device or sharding of a stack from its path and shape.
    """
    ranges = {
        name(range(layer, layer + 1)): (layers, index)
        for group in groups
        for layers in group
        for index, layer in enumerate(layers)
        if len(layers) > 1
    }
    stacks: dict[Path, Any] = {}
    for path, leaf in leaves:
        if path[0] not in ranges:
            yield path, jnp.asarray(leaf)
            continue
        layers, index = ranges[path[0]]
        target = (name(layers), *path[1:])
        shape = (len(layers), *leaf.shape)
        if isinstance(leaf, np.ndarray):
            stacks.setdefault(target, np.empty(shape, leaf.dtype))[index] = leaf
            continue
        if target not in stacks:
            stacks[target] = jnp.zeros(shape, leaf.dtype, device=place(target, shape))
        stacks[target] = _put(stacks[target], leaf, index)
    for target in list(stacks):
        stack = stacks.pop(target)
        yield target, jax.device_put(stack, place(target, stack.shape))


@partial(jax.jit, donate_argnums=0)
def _put(
    stack: Shaped[Array, "L ..."], leaf: Shaped[Array, "..."], index: int
) -> Shaped[Array, "L ..."]:
    return stack.at[index].set(leaf)
