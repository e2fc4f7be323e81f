"""The Hugging Face tensors that make up each parameter of ours: one table, read both ways."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

Path = tuple[str, ...]


@dataclass(frozen=True)
class Weight:
    """One parameter of ours and the tensors that it is made of, stacked along their first axis."""

    path: Path
    """Keys from the root of `params`, without the leading "params"."""
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Shape of each tensor as the file holds it."""
    transposed: bool = False
    """The tensors are [.., in, out] (GPT-2's Conv1D) and ours, as torch's Linear, [.., out, in]."""
    groups: int | None = None
    """The arrays on a first axis of ours, which share the tensors evenly; None: no such axis."""
    dtype: Any = None
    """Its dtype, whatever the model's weights have; None: as these."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of our parameter."""
        rows = sum(shape[0] for shape in self.shapes) // (self.groups or 1)
        stacked = (rows, *self.shapes[0][1:])
        axes = self._permute(stacked)
        return axes if self.groups is None else (self.groups, *axes)

    def _permute(self, axes: Sequence[Any]) -> tuple[Any, ...]:
        """Returns what belongs to the axes of the file's tensors, by ours; or the other way."""
        if not self.transposed:
            return tuple(axes)
        *rest, rows, columns = axes
        return (*rest, columns, rows)

    def join(self, read: Callable[[str], np.ndarray], dtype: DTypeLike) -> np.ndarray:
        """Returns our parameter from the file's tensors, read one at a time into the one result."""
        return self.part(
            (slice(None),) * len(self.shape), lambda name, rows: read(name)[rows], dtype
        )

    def part(
        self,
        index: tuple[slice, ...],
        read: Callable[[str, slice], np.ndarray],
        dtype: DTypeLike,
    ) -> np.ndarray:
        """Returns a part of our parameter from rows of the file's tensors."""
        bounds = [range(*cut.indices(size)) for cut, size in zip(index, self.shape, strict=True)]
        joined = np.empty([len(bound) for bound in bounds], dtype)
        parts = joined[None] if self.groups is None else joined
        groups = range(1) if self.groups is None else bounds.pop(0)
        rows, *rest = self._permute(bounds)
        columns = tuple(slice(bound.start, bound.stop) for bound in rest)
        each = len(self.names) // (self.groups or 1)
        for group, part in zip(groups, parts, strict=True):
            stacked, start = part.swapaxes(-1, -2) if self.transposed else part, 0
            span = slice(group * each, group * each + each)
            for name, shape in zip(self.names[span], self.shapes[span], strict=True):
                first, end = max(rows.start, start), min(rows.stop, start + shape[0])
                if first < end:
                    values = read(name, slice(first - start, end - start))
                    with np.errstate(over="ignore"):  # which `finite` finds
                        stacked[first - rows.start : end - rows.start] = values[:, *columns]
                start += shape[0]
        return joined

    def split(self, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the file's tensors from our parameter."""
        for name, place in self._places(array):
            yield name, np.ascontiguousarray(place)

    def _places(self, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yields each tensor's part of our parameter, as a view."""
        parts = array[None] if self.groups is None else array
        each = len(self.names) // len(parts)
        for group, part in enumerate(parts):
            stacked, start = part.swapaxes(-1, -2) if self.transposed else part, 0
            span = slice(group * each, group * each + each)
            for name, shape in zip(self.names[span], self.shapes[span], strict=True):
                yield name, stacked[start : start + shape[0]]
                start += shape[0]


def finite(array: np.ndarray) -> bool:
    """Tells whether all numbers are finite."""
    exponent = _EXPONENTS.get(array.dtype.name)
    if exponent is None:
        return array.dtype.kind in "iu" or bool(np.isfinite(array).all())
    # NumPy widens numbers of 16 bits one by one, which takes ten times as long.
    return not ((array.view(np.uint16) & exponent) == exponent).any()


_EXPONENTS = {"float16": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80)}
"""The bits that are all set in infinities and NaN."""


def linear(
    path: Path, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool
) -> Iterator[Weight]:
    """Yields a Dense layer of ours, made of torch Linear layers with one input."""
    yield Weight(
        (*path, "weight"),
        tuple(f"{name}.weight" for name in names),
        tuple((out, inputs) for out in outputs),
    )
    if bias:
        yield Weight(
            (*path, "bias"),
            tuple(f"{name}.bias" for name in names),
            tuple((out,) for out in outputs),
        )


def affine(path: Path, name: str, size: int) -> Iterator[Weight]:
    """Yields a layer norm's scale and bias."""
    yield Weight((*path, "scale"), (f"{name}.weight",), ((size,),))
    yield Weight((*path, "bias"), (f"{name}.bias",), ((size,),))


def list_names(names: Iterable[str], noun: str) -> str:
    """Returns the number of names, and the first three of them."""
    names = sorted(names)
    more = ", ..." if len(names) > 3 else ""
    return f"{len(names)} {noun}{'s' * (len(names) > 1)} ({', '.join(names[:3])}{more})"


def tree(leaves: Iterator[tuple[Path, Any]]) -> dict[str, Any]:
    """Nests dictionaries under "params", as Flax applies them."""
    root: dict[str, Any] = {}
    for path, leaf in leaves:
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return {"params": root}
