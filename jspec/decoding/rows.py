"""Rows of a state: copied, inserted into another state, and freed. Row numbers are data."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from jspec import sampling as samplings
from jspec._validate import seeds
from jspec._validate.errors import InputError
from jspec._validate.row_arguments import concrete_values, integers, to_array
from jspec._xla.explicit_axes import automatic
from jspec.arrays import memory_rows as memories
from jspec.drafters.autoregressive import Autoregressive
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import Drafter, Drafting, LogitsProcessor, PrefillInfo, WidthPolicy
from jspec.round.request import PreparedArrays, check_alive, check_same_memory
from jspec.types import PyTree, Sampling, State, Status


def fork(
    state: State,
    rows: ArrayLike,
    *,
    drafter: Drafter = Autoregressive(),
    policy: WidthPolicy = FixedWidth(),
    key: jax.Array | int | None = None,
    row_ids: ArrayLike | None = None,
) -> State:
    """Returns a state whose row i is a copy of the state's row `rows[i]`: nothing is read again.

    Several answers to one prompt, or a beginning that many prompts share (`prefill` with
    `earlier`). What rows of the drafter's memory share stays shared.

    Args:
        state: of `prefill` or `step`; not donated.
        rows: [R] which row each new one copies; a row may be copied often, or left out.
        drafter: the one that the state was made with.
        policy: as `drafter`.
        key: a random key or a seed, needed if the rows are sampled. The tokens are those of a call
            with this key and these ids.
        row_ids: [R] ids of the new rows for their randomness; None: 0 .. R-1.

    Raises:
        InputError: if a row is not there, or rows would be sampled without a key: copies would
            then all say the same.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> state = jspec.prefill(model, model.init(), [[1, 2, 3], [4, 5, 6]], max_new_tokens=4)
        >>> jspec.fork(state, [1, 1, 0]).root.tolist()
        [6, 6, 3]
    """
    check_alive(state)
    drafting = Drafting(drafter, None, policy)
    check_same_memory(drafting, state)
    arguments = _check_fork(rows, row_ids, key, len(state.root), state.controls.sampling)
    return copies(state, *arguments, drafting)


def _check_fork(
    rows: ArrayLike,
    row_ids: ArrayLike | None,
    key: jax.Array | int | None,
    batch: int,
    sampling: Sampling | None,
) -> tuple[Any, Any, jax.Array | None]:
    """Returns the checked arguments of `fork`: (rows, row_ids, key)."""
    array = to_array(rows, "rows")
    if array.ndim != 1 or not array.size or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(
            f"rows has shape {array.shape} and dtype {array.dtype}; pass integers [R], the row "
            "that each new one copies"
        )
    count = len(array)
    sources = integers(array, count, "rows", 0, batch - 1, "the rows of the state")
    if sampling is not None and key is None and np.any(concrete_values(sampling.temperature) != 0):
        raise InputError(
            "the state's rows are sampled and key is None, so that copies would draw the same; "
            "pass key=jax.random.key(0)"
        )
    why = "an id of 32 bits; two rows of the same id draw the same noise"
    ids = np.arange(count) if row_ids is None else row_ids
    return sources, integers(ids, count, "row_ids", -(2**31), 2**31 - 1, why), seeds.to_key(key)


@jax.jit
@automatic
def copies(
    state: State,
    rows: Int[Array, " R"],
    row_ids: Int[Array, " R"] | None,
    key: jax.Array | None,
    drafting: Drafting,
) -> State:
    """Returns the state whose row i is a copy of row `rows[i]`."""
    drafter_state, policy_state = (
        memories.take(memory, axes, rows) for memory, axes in _memories(state, drafting)
    )
    # Copied, or both states would hold one array, which the next step donates.
    shared = jax.tree.map(jnp.copy, [member.shared for member in state.processors])
    result = jax.tree.map(lambda leaf: leaf[rows], by_row(state))
    keys = (
        result.controls.keys if key is None or row_ids is None else samplings.row_keys(key, row_ids)
    )
    result = replace(result, drafter_state=drafter_state, policy_state=policy_state)
    return _join(replace(result, controls=replace(result.controls, keys=keys)), shared)


def _memories(state: State, drafting: Drafting) -> Iterator[tuple[PyTree, list[int | None]]]:
    """Yields the memories of drafter and policy, each with the axes of the rows in its leaves."""
    pairs = (drafting.drafter, state.drafter_state), (drafting.policy, state.policy_state)
    for part, memory in pairs:

        def init(batch: int, part: Any = part) -> PyTree:
            return part.init(batch, state.capacity, None)

        yield memory, memories.row_axes(type(part).__name__, init)


def by_row(state: State) -> State:
    """Returns all of a state that has an entry for each row, on the first axis of every leaf:
    without what rows share, and without the memories of drafter and policy.
    """
    members = tuple(replace(member, shared=None) for member in state.processors)
    return replace(state, drafter_state=(), policy_state=(), processors=members)


def _join(rows: State, shared: Sequence[PyTree]) -> State:
    """Returns a state of its rows and of what they share."""
    pairs = zip(rows.processors, shared, strict=True)
    return replace(rows, processors=tuple(replace(member, shared=part) for member, part in pairs))


def check_arrival(state: State, arrival: State) -> None:
    """Raises InputError unless a state of one row fits into this one."""
    if not isinstance(arrival, State) or len(arrival.root) != 1:
        raise InputError("arrival is not a state of one row; pass what Engine.prefill returns")
    check_alive(arrival)
    if arrival.capacity != state.capacity:
        raise InputError(
            f"the arrival's row holds {arrival.capacity} tokens and the engine's hold "
            f"{state.capacity}; pass a request that this engine's prefill made"
        )
    if jax.tree.structure(arrival) != jax.tree.structure(state):
        raise InputError(
            "the arrival holds other things than the engine's rows; pass a request that this "
            "engine's prefill made"
        )
    ours, theirs = jax.tree.leaves(by_row(state)), jax.tree.leaves(by_row(arrival))
    for number, (leaf, new) in enumerate(zip(ours, theirs, strict=True)):
        if (new.shape, new.dtype) != ((1, *leaf.shape[1:]), leaf.dtype):
            path, _ = jax.tree.leaves_with_path(by_row(state))[number]
            raise InputError(
                f"the arrival's {jax.tree_util.keystr(path)} has shape {new.shape} of {new.dtype} "
                f"and the engine's rows have {leaf.shape[1:]} of {leaf.dtype}; pass a request that "
                "this engine's prefill made, and give its processors room"
            )


@partial(jax.jit, donate_argnames=("state",))
@automatic
def insert(state: State, row: Int[Array, ""], arrival: State, drafting: Drafting) -> State:
    """Returns the state with a request in the place of a row; see `Engine.insert`."""

    def write(leaf: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(leaf, new, row, axis=0)

    after = jax.tree.map(write, by_row(state), by_row(arrival))
    drafter_state, policy_state = (
        memories.put(memory, axes, row, row_state)
        for (memory, axes), row_state in zip(
            _memories(state, drafting),
            (arrival.drafter_state, arrival.policy_state),
            strict=True,
        )
    )
    after = replace(after, drafter_state=drafter_state, policy_state=policy_state)
    return _join(after, [member.shared for member in state.processors])


@partial(jax.jit, static_argnames=("size", "vocab_size", "batch"))
def repeat(
    processors: tuple[LogitsProcessor, ...],
    call: PreparedArrays,
    size: int,
    vocab_size: int,
    batch: int,
) -> tuple[LogitsProcessor, ...]:
    """Returns the members of one row for so many rows, before their first round."""

    def all_rows(part: PyTree) -> Any:
        return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf), batch, axis=0), part)

    prompt, lengths = all_rows((call.prompt, call.prompt_lengths))
    info = PrefillInfo(prompt, lengths, 0 * lengths, None, size, vocab_size)
    members = (replace(member, rows=all_rows(member.rows)) for member in processors)
    return tuple(member.begin(info) for member in members)


@partial(jax.jit, static_argnames=("model",), donate_argnames=("state",))
@automatic
def free(state: State, row: Int[Array, ""], model: Any) -> State:
    """Returns the state with a free row; see `Engine.free`."""
    # Without a text, nothing of the row is read any more.
    here = jnp.arange(len(state.root)) == row
    positions = jnp.where(here, 0, state.positions)
    return replace(
        state,
        memory=model.until(state.memory, positions) if hasattr(model, "until") else state.memory,
        positions=positions,
        lengths=jnp.where(here, 0, state.lengths),
        status=jnp.where(here, Status.FREE, state.status),
    )
