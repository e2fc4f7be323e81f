"""A drafter's memory on disk: what its rows share, so that the next program starts warm.

An adjacency matrix, past outputs, what was learnt of acceptance: all of that outlives a call as
`Result.drafter_state`. Here it outlives the process. What belongs to rows is not kept.

A memory of other texts, or of another model, costs speed and never a token.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jspec._validate.errors import InputError
from jspec._validate.whole_files import written_whole
from jspec.arrays.between_calls import SLOTS
from jspec.arrays.memory_rows import row_axes
from jspec.protocols import Drafter
from jspec.types import PyTree

__all__ = ["check_outlives", "empty", "load", "merge", "save"]

_FORMAT = "jspec memory 2"


def empty(drafter: Drafter, rows: int = 1) -> PyTree:
    """Returns the memory of a drafter that has learnt nothing, for a loop's start.

    It has the shapes of every `Result.drafter_state` of as many rows, whatever the prompts and
    `max_new_tokens` are, so that `jax.lax.scan` carries it and a step compiled ahead takes it.

    Args:
        drafter: whose memory it is.
        rows: of the calls.

    Example:
        >>> import jax, jspec
        >>> model, drafter = jspec.testing.PrefixLM(), jspec.Suffix(capacity=64)
        >>> def call(known, prompt):
        ...     ask = dict(drafter=drafter, drafter_state=known, max_new_tokens=4)
        ...     result = jspec.decode(model, model.init(), prompt, **ask)
        ...     return result.drafter_state, result.tokens
        >>> prompts = jax.numpy.ones((3, 1, 5), int)  # three calls of one row
        >>> jax.lax.scan(call, jspec.memory_file.empty(drafter), prompts)[1].shape
        (3, 1, 4)
    """
    return drafter.init(rows, SLOTS, None)


def save(path: str | os.PathLike[str], drafter: Drafter, state: PyTree, about: str = "") -> None:
    """Writes the shared part of a memory to a file, atomically.

    Args:
        path: a file in safetensors' format; its folder is made.
        drafter: whose memory it is.
        state: `Result.drafter_state`, or a `State`'s.
        about: a text that `load` compares, such as the model's name.

    Raises:
        InputError: if the memory is of another drafter, or its rows share nothing.
        OSError: if the file cannot be written.

    Example:
        >>> import jspec, tempfile
        >>> model, drafter = jspec.testing.PrefixLM(), jspec.Suffix(capacity=64)
        >>> ask = dict(drafter=drafter, max_new_tokens=4)
        >>> state = jspec.decode(model, model.init(), [[1, 2, 3]], **ask).drafter_state
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jspec.memory_file.save(f"{folder}/suffix", drafter, state)
        ...     known = jspec.memory_file.load(f"{folder}/suffix", drafter)
        >>> bool((known.past == state.past).all())
        True
    """
    places, own_shapes = _find_shared(drafter), jax.eval_shape(lambda: empty(drafter))
    leaves, structure = jax.tree.flatten(state)
    kind = type(drafter).__name__
    if structure != jax.tree.structure(own_shapes):
        raise InputError(f"the memory is not a {kind}'s; pass the drafter that it is of")
    arrays = {name: np.asarray(leaves[place]) for name, place in places.items()}
    templates = {name: jax.tree.leaves(own_shapes)[place] for name, place in places.items()}
    for name, array in arrays.items():
        theirs, ours = ((it.shape, it.dtype) for it in (array, templates[name]))
        if theirs != ours:
            raise InputError(
                f"the memory does not fit this {kind}: {name or 'its array'} is "
                f"{_describe(theirs)} in it and {_describe(ours)} here; pass the drafter that it "
                "is of"
            )
    arrays = {name: np.atleast_1d(array) for name, array in arrays.items()}
    metadata = {"format": _FORMAT, "drafter": type(drafter).__name__, "about": about}
    with written_whole(path) as file:
        save_file(arrays, file, metadata)


def load(path: str | os.PathLike[str], drafter: Drafter, about: str = "") -> PyTree:
    """Returns the memory that `save` wrote, as a `drafter_state` for `decode` or `Engine.init`.

    Args:
        path: the file.
        drafter: for which it is; other sizes of its trees are welcome.
        about: as it was saved.

    Raises:
        InputError: if it is not such a file, or of another drafter, size or `about`.
    """
    try:
        arrays, metadata = load_file(path), _metadata(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as a drafter's memory: {error}") from error
    if metadata.get("format") == "jspec memory 1":
        raise InputError(
            f"{path} is a drafter's memory that jspec 0.1 wrote, and this version "
            "reads files of 0.2 and later; remove it, and it is learnt anew"
        )
    if metadata.get("format") != _FORMAT:
        raise InputError(f"{path} is not a drafter's memory; pass a file of jspec.memory_file.save")
    if (label := metadata.get("about", "")) != about:
        raise InputError(
            f"{path} is a memory of {label or 'no named model'} and this is "
            f"{about or 'no named model'}; pass about={label!r} as it was saved, or another file"
        )
    places = _find_shared(drafter)
    leaves, structure = jax.tree.flatten(empty(drafter))
    # The format has no numbers, only arrays.
    shapes = {
        name: (leaves[place].shape or (1,), leaves[place].dtype) for name, place in places.items()
    }
    file_shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    for name in sorted(shapes | file_shapes):
        theirs, ours = file_shapes.get(name), shapes.get(name)
        if theirs != ours:
            raise InputError(
                f"{path} is a memory of {metadata.get('drafter')} and does not fit this "
                f"{type(drafter).__name__}: {name or 'its array'} is {_describe(theirs)} there and "
                f"{_describe(ours)} here; pass another file"
            )
    for name, place in places.items():
        leaves[place] = jnp.asarray(arrays[name]).reshape(leaves[place].shape)
    return jax.tree.unflatten(structure, leaves)


def merge(drafter: Drafter, states: Sequence[PyTree]) -> PyTree:
    """Joins the memories of replicas into one `drafter_state` for each of them.

    Under `pmap` and `shard_map` each device has a memory of its own, which learns from its own rows
    alone. A merge changes no token, only how many are accepted.

    Args:
        drafter: `jspec.TokenRecycling`, `jspec.Suffix`, or another with a method `merged`.
        states: `Result.drafter_state` of each replica, as `pmap` returns it on a first axis.

    Raises:
        InputError: if such memories cannot be merged.

    Example:
        >>> import jspec, jax.numpy as jnp
        >>> drafter = jspec.TokenRecycling(3, jspec.tree.branching([1]), k=1)
        >>> replicas = [
        ...     empty(drafter).replace(lines=jnp.array(lines))
        ...     for lines in ([[[2], [0], [0]]], [[[0], [1], [0]]])
        ... ]
        >>> merge(drafter, replicas).lines.tolist()
        [[[2], [1], [0]]]
    """
    if drafter.merged is None:
        raise InputError(
            f"drafter is {type(drafter).__name__}, whose memories cannot be merged; go on with one "
            "of them, or take jspec.TokenRecycling or jspec.Suffix"
        )
    structure = jax.tree.structure(empty(drafter))
    if not states or any(jax.tree.structure(state) != structure for state in states):
        raise InputError(
            f"states are not memories of {type(drafter).__name__}; pass a list with the "
            "drafter_state of each replica"
        )
    first, *rest = ([leaf.shape for leaf in jax.tree.leaves(state)] for state in states)
    for place, shapes in enumerate(rest, 1):
        if shapes != first:
            raise InputError(
                f"states[{place}] has arrays of shapes {shapes} and states[0] of {first}; pass "
                "memories of drafters of the same sizes, and as many rows"
            )
    return drafter.merged(states)


def check_outlives(drafter: Drafter) -> None:
    """Raises InputError unless the rows of a drafter's memory share something."""
    _find_shared(drafter)


def _find_shared(drafter: Drafter) -> dict[str, int]:
    """Returns the places of the leaves that all rows share, by their paths."""
    name = type(drafter).__name__
    axes = row_axes(name, lambda batch: drafter.init(batch, SLOTS, None))
    paths = [path for path, _ in jax.tree.leaves_with_path(jax.eval_shape(lambda: empty(drafter)))]
    shared = {
        jax.tree_util.keystr(path): place
        for place, (path, axis) in enumerate(zip(paths, axes, strict=True))
        if axis is None
    }
    if not shared:
        raise InputError(
            f"{name} keeps nothing that outlives a call; take a drafter that learns, such as "
            "jspec.TokenRecycling or jspec.Suffix (methods token_recycling and suffix)"
        )
    return shared


def _metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)).get("__metadata__", {})


def _describe(shape: tuple[Any, Any] | None) -> str:
    return "absent" if shape is None else f"{shape[0]} of {shape[1]}"
