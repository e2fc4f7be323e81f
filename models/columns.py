"""Lays out the columns of fused projections for tensor parallelism.

Queries, keys and values are one product of a layer, gate and up another: few large products are
faster than many small ones. A column is one output: a row of the weights, which are [O, I], and a
number of the bias. The products follow each other, [q | k | v]. An even
share of such columns is not a share of each product, so that devices which share them would
exchange what they computed. For so many devices the columns are laid out in as many parts, each
with its share of every product: [q0 k0 v0 | q1 k1 v1].
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Shaped

from jspec.models.stacking import layers_of
from jspec.models.stacking import name as layer_name
from jspec.types import PyTree

Path = tuple[str, ...]


@dataclass(frozen=True)
class FusedProjection:
    """A fused projection: several products of a layer that are computed as one."""

    counts: tuple[int, ...]
    """Columns of each product: heads of queries, keys and values, or lanes of gate and up."""
    size: int = 1
    """Columns of each of these."""

    def parts(self, devices: int) -> int:
        """Returns the column parts on `devices` devices: one each for whole heads, else one.

        Fewer parts than devices would be worse than one: XLA would gather the weights.
        """
        return 1 if any(count % devices for count in self.counts) else devices

    def order(self, devices: int, source: int = 1) -> np.ndarray:
        """Returns the place in the layout for `source` of each column in another layout."""
        parts = self.parts(devices)
        ends = self.size * np.cumsum(self.counts)[:-1]
        products = np.split(np.arange(self.size * sum(self.counts)), ends)
        order = np.concatenate([product.reshape(parts, -1) for product in products], 1).ravel()
        return order if source == 1 else np.argsort(self.order(source))[order]

    def runs(self, devices: int, source: int = 1) -> Iterator[slice]:
        """Yields the same as runs of adjacent columns."""
        order = self.order(devices, source)
        breaks = np.flatnonzero(np.diff(order) != 1) + 1
        for run in np.split(order, breaks):
            yield slice(int(run[0]), int(run[-1]) + 1)

    def apart(
        self, x: Shaped[Array, "..."], devices: int, axis: int = -1
    ) -> list[Shaped[Array, "..."]]:
        """Returns the products from their joint axis, which counts columns or heads."""
        parts, axis = self.parts(devices), axis % x.ndim
        each = x.shape[axis] // sum(self.counts)
        ends = np.cumsum([each * count // parts for count in self.counts])[:-1].tolist()
        if parts == 1:
            return jnp.split(x, ends, axis)
        lead, behind = x.shape[:axis], x.shape[axis + 1 :]
        split = jnp.split(x.reshape(*lead, parts, -1, *behind), ends, axis + 1)
        return [product.reshape(*lead, -1, *behind) for product in split]


def within(run: slice, runs: Iterable[slice]) -> Iterator[tuple[slice, slice]]:
    """Yields the places of the columns `run`, counted over the runs: here, and in the source."""
    start = 0
    for source in runs:
        first, end = max(run.start, start), min(run.stop, start + source.stop - source.start)
        if first < end:
            moved = source.start - start
            yield slice(first - run.start, end - run.start), slice(first + moved, end + moved)
        start += source.stop - source.start


def axis(path: Sequence[str]) -> int:
    """Returns the axis of a parameter that counts the columns, from the last."""
    return -2 if path[-1] == "weight" else -1


def part(
    read: Callable[[tuple[slice, ...]], np.ndarray],
    path: Sequence[str],
    shape: Sequence[int],
    fused: FusedProjection,
    devices: int,
    dtype: DTypeLike,
    source: int = 1,
) -> Callable[[tuple[slice, ...]], np.ndarray]:
    """Reads parts of a parameter as it is laid out for so many devices."""

    def of(index: tuple[slice, ...]) -> np.ndarray:
        cuts = [slice(*cut.indices(size)[:2]) for cut, size in zip(index, shape, strict=True)]
        values = np.empty([cut.stop - cut.start for cut in cuts], dtype)
        columns = np.moveaxis(values, axis(path), 0)
        run = cuts[axis(path)]
        for here, span in within(run, fused.runs(devices, source)):
            cuts[axis(path)] = span
            columns[here] = np.moveaxis(read(tuple(cuts)), axis(path), 0)
        return values

    return of


def find_fused(path: Sequence[str], fused: Mapping[str, FusedProjection]) -> FusedProjection | None:
    """Returns the products that a parameter is of; None: one product."""
    *_, above, name, _ = ("", "", *path)
    layers = layers_of(above)
    first = above if layers is None else layer_name(layers[:1])
    return fused.get(f"{first}/{name}", fused.get(name))


def relaid(
    params: PyTree, fused: Mapping[str, FusedProjection], source: int, target: int
) -> PyTree:
    """Returns weights with columns for `source` devices, laid out for `target` ones."""

    def move(path, leaf):
        keys = [str(getattr(key, "key", "")) for key in path]
        products = find_fused(keys, fused)
        if products is None or products.parts(source) == products.parts(target):
            return leaf
        return _take(leaf, products.order(target, source), axis(keys))

    return jax.tree_util.tree_map_with_path(move, params)


def _take(leaf: Shaped[Array, "..."], order: np.ndarray, along: int) -> Shaped[Array, "..."]:
    if isinstance(leaf, np.ndarray):
        return leaf.take(order, along)
    kind = jax.typeof(leaf).sharding

    take: Any = partial(jnp.take, indices=order, axis=along)
    if explicit := kind.mesh.explicit_axes:  # which would ask the gather how its result lies
        take = jax.sharding.auto_axes(take, axes=explicit, out_sharding=kind)
    return jax.device_put(take(leaf), leaf.sharding)
