"""Continued calls: requirements on the earlier state."""

from typing import Any

import jax

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import concrete_values
from jspec.protocols import CausalLM
from jspec.round.request import check_alive
from jspec.types import State


def check_kept(model: CausalLM, earlier: State, batch: int, capacity: int | None) -> None:
    """Raises InputError unless this is a state of this model, with as many rows."""
    if not isinstance(earlier, State):
        raise InputError(
            f"earlier is a {type(earlier).__name__}; pass the jspec.State of a call that ended"
        )
    check_alive(earlier)
    if (rows := len(earlier.root)) != batch:
        raise InputError(
            f"the earlier state has {rows} rows and the prompt {batch}; pass a row for each, or "
            "jspec.fork the state first"
        )
    if capacity not in (None, earlier.capacity):
        raise InputError(
            f"capacity is {capacity} and the earlier state has {earlier.capacity}, which cannot "
            "change; leave capacity out"
        )
    fresh = jax.eval_shape(lambda: model.init_memory(batch, earlier.capacity))
    same = jax.tree.structure(fresh) == jax.tree.structure(earlier.memory) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype)
        for a, b in zip(jax.tree.leaves(fresh), jax.tree.leaves(earlier.memory), strict=True)
    )
    if not same:
        raise InputError(
            f"the earlier state's memory is not one of this {type(model).__name__}: it has other "
            "layers, heads or dtypes; pass a state that this model made"
        )


def check_capacity(earlier: State, counts: Any, context: int | None) -> None:
    """Raises InputError unless the whole text fits the memory that holds its beginning."""
    before, more = concrete_values(earlier.positions), concrete_values(counts)
    if before is None or more is None:
        return
    capacity, total = earlier.capacity, before + more
    row = int(total.argmax())
    if total[row] <= capacity:
        return
    of, fix = (
        f"the state holds {capacity} tokens per row",
        f"start with capacity={total[row]} or more",
    )
    if capacity == context:
        of, fix = f"the model's context is {capacity}", "leave out some of them"
    raise InputError(
        f"row {row} would hold {total[row]} tokens, {more[row] - 1} of them new, and {of}; {fix}"
    )
