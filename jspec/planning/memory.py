"""The bytes of a device: what is held, what is needed besides, and what a mesh cannot split."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from jspec.models import stacking
from jspec.planning import layout
from jspec.planning.layout import Held
from jspec.planning.reachable import DECODE, Reached
from jspec.planning.setting import Setting
from jspec.planning.work import DeviceWork
from jspec.types import PyTree, State

_SPARE = 1.25
"""Estimated temporaries over the largest arrays that stand side by side."""


def held(setting: Setting, state: State | None = None) -> Held:
    """The bytes that one device holds.

    Args:
        setting: of the plan.
        state: shapes of the generation's state; None: all but cache and drafter counts as nothing.
    """
    mesh = setting.mesh
    params, drafter_params = setting.placed()
    cache = layout.per_device(
        layout.model_memory(setting.model, setting.rows, setting.capacity, mesh)
    )
    memory = layout.per_device(
        layout.memory_of(setting.drafter, setting.rows, setting.capacity, mesh)
    )
    rest = 0
    if state is not None:
        plain = layout.per_device(replace(state, memory=None, drafter_state=None))
        # The prompt, which is as long as a row.
        rest = plain + setting.rows // setting.data * (setting.capacity + 1) * 4
    shared = {id(leaf) for leaf in jax.tree.leaves(setting.params)}
    own = [
        placed
        for leaf, placed in zip(
            jax.tree.leaves(setting.drafter_params), jax.tree.leaves(drafter_params), strict=True
        )
        if id(leaf) not in shared
    ]
    return Held(
        weights=layout.per_device(params),
        drafter_weights=layout.per_device(own),
        cache=cache,
        drafter_state=memory,
        rest=rest,
    )


def estimated(setting: Setting, widest: DeviceWork, chunk: DeviceWork, params: PyTree) -> int:
    """Temporaries without a compiler: the scores of all tokens, and the widest of the layers."""
    model: Any = setting.model
    shares = max(
        (
            layout.parts(leaf)
            for leaf in jax.tree.leaves(params)
            if leaf.shape and leaf.shape[0] == model.vocab_size
        ),
        default=1,
    )
    scores = 4 * widest.tokens * model.vocab_size / shares
    return int(_SPARE * max(scores + widest.widest, chunk.widest))


def notes(setting: Setting, params: PyTree) -> tuple[str, ...]:
    """What the mesh cannot split evenly, so that every device holds all of it."""
    count, model = setting.model_parallel, setting.model
    found = []
    if count == 1:
        return ()
    heads = getattr(getattr(model, "config", None), "num_kv_heads", count)
    if heads % count:
        found.append(
            f"the key-value heads ({heads}) do not divide over model={count} devices: each holds "
            f"the whole cache of its rows; over model={_largest_divisor(heads, count)} they would"
        )
    size = model.vocab_size
    whole = [
        leaf
        for leaf in jax.tree.leaves(params)
        if leaf.shape and leaf.shape[0] == size and layout.parts(leaf) == 1
    ]
    if whole and size % count:
        held = sum(map(layout.shard_bytes, whole))
        found.append(
            f"a vocabulary of {size} does not divide over model={count} devices: each holds all "
            f"{held / 1e6:.0f} MB of its weights and computes all scores; over "
            f"model={_largest_divisor(size, count)} it would"
        )
    return tuple(found)


def notes_of_scanning(setting: Setting, params: PyTree) -> tuple[str, ...]:
    """What a GPU copies in every round of layers that are scanned."""
    if setting.device.platform != "gpu":
        return ()
    scanned = [
        part for name, part in params["params"].items() if len(stacking.layers_of(name) or ()) > 1
    ]
    if not scanned:
        return ()
    size = layout.per_device(scanned)
    # Written and read again, beside the reading that every round does.
    seconds = 2 * size / setting.device.bandwidth
    note = (
        "a GPU copies the weights of scanned layers out of their array in every round, "
        f"{size / 1e9:.3g} GB or {seconds * 1e3:.2g} ms more than is predicted; layers that are "
        "not scanned are not copied"
    )
    return (note,)


def notes_of_buckets(setting: Setting, programs: Sequence[Reached]) -> tuple[str, ...]:
    """What `jspec.decode` holds, whose rows have as many slots as the next bucket."""
    capacity = max(one.program.capacity for one in programs if one.call == DECODE)
    if capacity <= setting.capacity:
        return ()
    cache = layout.model_memory(setting.model, setting.rows, capacity, setting.mesh)
    note = (
        f"rows of {setting.capacity} tokens are those of jspec.Engine and jspec serve; "
        f"jspec.decode rounds them up to {capacity}, a cache of "
        f"{layout.per_device(cache) / 1e9:.3g} GB: for that plan {capacity}"
    )
    return (note,)


def _largest_divisor(size: int, most: int) -> int:
    """The largest number of devices up to `most` over which a size divides."""
    return max(number for number in range(1, most + 1) if size % number == 0)
