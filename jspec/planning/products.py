"""The matrix products of a function, read from its trace: flops, and the arguments they read.

Works for any function of JAX, so for every model and drafter; nothing is computed or compiled.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.interpreters import partial_eval

_CARRIERS = {
    "add", "bitcast_convert_type", "broadcast_in_dim", "convert_element_type", "copy",
    "dynamic_slice", "expand_dims", "mul", "reduce_precision", "reshape", "slice", "squeeze",
    "stop_gradient", "transpose",
}  # fmt: skip
"""Operations whose result holds the argument that they read, in another form."""
_ARITHMETIC = {"add", "mul"}
"""Of these only where nothing computed goes in: a weight by its factor, and not states by a
scale."""


class Product(NamedTuple):
    """A product of two arrays, or a lookup in a table, and how often it is run."""

    flops: float
    """Of all runs; an addition and a multiplication are two. A lookup has none."""
    output: float
    """Bytes of the results of all runs."""
    leaf: int | None
    """The leaf of the function's arguments that one factor comes from; None: both are computed."""
    read: float
    """Bytes of that leaf which all runs read."""
    runs: float
    contracted: tuple[int, ...]
    """Sizes of the axes that are summed over; of a lookup, the size of the table."""


class _Source(NamedTuple):
    """Where a value comes from: a leaf of the arguments, and the bytes of it that it holds."""

    leaf: int
    size: float


def products(function: Callable[..., Any], *arguments: Any) -> list[Product]:
    """The products that a function runs for arguments of these shapes.

    What no result needs is left out. Of alternatives, such as the branches of a switch, the one
    with the most flops counts; a loop of unknown length counts as one run.

    Args:
        function: of JAX.
        arguments: arrays or their shapes.

    Returns:
        The products, each with the number of the leaf among `jax.tree.leaves(arguments)`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> weights = jax.ShapeDtypeStruct((16, 32), jnp.float32)
        >>> x = jax.ShapeDtypeStruct((4, 16), jnp.float32)
        >>> products(lambda weights, x: x @ weights, weights, x)
        [Product(flops=4096.0, output=512.0, leaf=0, read=2048.0, runs=1.0, contracted=(16,))]
    """
    closed = jax.make_jaxpr(function)(*arguments)
    # A parameter named instantiate keeps all arguments, so that their numbers stay.
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals), True)
    leaves = jax.tree.leaves(arguments)
    sources = [_Source(number, _size(leaf)) for number, leaf in enumerate(leaves)]
    found: list[Product] = []
    _walk(jaxpr, sources, 1.0, found)
    return found


def _walk(
    jaxpr: Jaxpr, sources: Sequence[_Source | None], times: float, found: list[Product]
) -> list[_Source | None]:
    """Appends the products of a trace to `found`; the sources of its results.

    Args:
        jaxpr: the trace.
        sources: of its arguments.
        times: how often it is run.
        found: products so far.
    """
    known: dict[Any, _Source | None] = dict(zip(jaxpr.invars, sources, strict=True))

    def source(atom: Any) -> _Source | None:
        return None if isinstance(atom, Literal) else known.get(atom)

    for equation in jaxpr.eqns:
        given = [source(atom) for atom in equation.invars]
        name = equation.primitive.name
        results: list[_Source | None] = [None] * len(equation.outvars)
        if name == "dot_general":
            found.append(_dot(equation, given, times))
        elif name == "gather" and given[0] is not None:
            table, result = equation.invars[0].aval, equation.outvars[0].aval
            part = _Source(given[0].leaf, min(given[0].size, _size(result)))
            found.append(_lookup(table, result, part, times))
            results = [part]
        elif name == "cond":
            results = _alternatives(equation, given, times, found)
        elif name == "while":
            count = equation.params["cond_nconsts"]
            _walk(equation.params["body_jaxpr"].jaxpr, given[count:], times, found)
        elif name == "scan":
            _scan(equation, given, times, found)
        elif inner := _inner(equation.params):
            results = _walk(
                inner, given[-len(inner.invars) :] if inner.invars else [], times, found
            )
        elif name == "optimization_barrier":
            results = list(given)
        elif name in _CARRIERS and not (name in _ARITHMETIC and _is_computed(equation, given)):
            first = next((each for each in given if each is not None), None)
            if first is not None:
                held = _size(equation.outvars[0].aval) if "slice" in name else first.size
                results = [_Source(first.leaf, min(first.size, held))] * len(results)
        known.update(zip(equation.outvars, results, strict=True))
    return [source(atom) for atom in jaxpr.outvars]


def _dot(equation: Any, given: Sequence[_Source | None], times: float) -> Product:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, result = equation.invars[0].aval, equation.outvars[0].aval
    sizes = tuple(left.shape[axis] for axis in contracted)
    known = [each for each in given if each is not None]
    # Of two leaves the larger one is the weight.
    weight = max(known, key=lambda each: each.size, default=None)
    return Product(
        flops=2.0 * times * prod(result.shape) * prod(sizes),
        output=times * _size(result),
        leaf=None if weight is None else weight.leaf,
        read=0.0 if weight is None else times * weight.size,
        runs=times,
        contracted=sizes,
    )


def _lookup(table: Any, result: Any, part: _Source, times: float) -> Product:
    read = times * part.size
    return Product(0.0, times * _size(result), part.leaf, read, times, table.shape[:1])


def _alternatives(
    equation: Any, given: Sequence[_Source | None], times: float, found: list[Product]
) -> list[_Source | None]:
    """Adds the products of the branch with the most flops."""
    ways = []
    for branch in equation.params["branches"]:
        own: list[Product] = []
        results = _walk(branch.jaxpr, given[1:], times, own)
        ways.append((sum(each.flops for each in own), own, results))
    found.extend(max(ways, key=lambda way: way[0])[1])
    # The same weight in the form that suits a platform may be traced back in one branch alone.
    by_branch = [results for _, _, results in ways]
    return [
        next((each for each in same if each is not None), None)
        for same in zip(*by_branch, strict=True)
    ]


def _is_computed(equation: Any, given: Sequence[_Source | None]) -> bool:
    """Whether an operand comes from no argument and is no number."""
    pairs = zip(equation.invars, given, strict=True)
    return any(each is None and not isinstance(atom, Literal) for atom, each in pairs)


def _scan(
    equation: Any, given: Sequence[_Source | None], times: float, found: list[Product]
) -> None:
    """Adds the products of a loop of known length; a step reads its part of what is scanned."""
    length = equation.params["length"]
    before = equation.params["num_consts"] + equation.params["num_carry"]
    parts = [
        each if each is None or place < before else _Source(each.leaf, each.size / max(length, 1))
        for place, each in enumerate(given)
    ]
    _walk(equation.params["jaxpr"].jaxpr, parts, times * length, found)


def _inner(params: dict[str, Any]) -> Jaxpr | None:
    """The trace that an operation calls; None: it calls none."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = params.get(name)
        if isinstance(inner, ClosedJaxpr):
            return inner.jaxpr
        if isinstance(inner, Jaxpr):
            return inner
    return None


def _size(leaf: Any) -> float:
    """Bytes of an array of this shape."""
    return float(prod(leaf.shape) * leaf.dtype.itemsize)
