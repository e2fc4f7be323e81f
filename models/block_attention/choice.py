"""Autotunes the attention kernel: measured once on the device at hand, and kept in a file."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jspec import tree as trees
from jspec._validate import plain_json
from jspec._validate.arguments import check_integer
from jspec._validate.whole_files import written_whole
from jspec.models.attention import XLA, Cached, Implementation, Past, attend
from jspec.models.block_attention.hopper import Hopper
from jspec.models.block_attention.implementation import BlockAttention, ByQueries
from jspec.models.block_attention.mosaic import Mosaic
from jspec.models.block_attention.triton import Triton
from jspec.models.decoder import Decoder
from jspec.types import NO_PARENT, Tree

CANDIDATES: Mapping[str, tuple[Implementation, ...]] = {
    "gpu": (
        BlockAttention(past=Triton(64, 64, num_splits=8)),
        BlockAttention(past=Triton(128, 64, num_splits=8, num_warps=8)),
        BlockAttention(nodes=Triton(64, 32)),
        BlockAttention(nodes=Triton(64, 32), past=Triton(64, 64, num_splits=8)),
        BlockAttention(
            nodes=Triton(128, 32, num_warps=8), past=Triton(128, 64, num_splits=8, num_warps=8)
        ),
        # Where the GPU is no Hopper or the numbers are of 32 bits, these do not compile or are XLA.
        BlockAttention(past=Hopper(64)),
        BlockAttention(nodes=Hopper(64, num_splits=1), past=Hopper(64)),
    ),
    "tpu": (
        BlockAttention(past=Mosaic(512, 512)),
        BlockAttention(nodes=Mosaic(512, 128), past=Mosaic(512, 512)),
        BlockAttention(nodes=Mosaic(256, 128), past=Mosaic(1024, 256)),
    ),
}
"""What is compared with XLA's attention, by platform. On a CPU it is nothing."""
LEAST_GAIN = 1.05
"""How much faster a kernel has to be."""
CHAIN = 8
"""Attentions of a program that is timed, one after another as the layers of a model."""
_FORMAT = 1

M = TypeVar("M", bound=Decoder)


@dataclass(frozen=True)
class AttentionSetting:
    """All that the time of an attention depends on, but the number of new tokens."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    soft_cap: float | None
    dtype: str
    batch_size: int
    capacity: int
    """Of the cache, all of them live; 0: there is none."""
    device: str
    jax: str
    jspec: str


@dataclass(frozen=True)
class AttentionTiming:
    """What attention over some new tokens took."""

    tokens: int
    """New tokens of a row, N."""
    seconds: Mapping[str, float]
    """Of an attention, by the `repr` of the implementation."""
    errors: Mapping[str, str]
    """Why there are none."""


def fastest(
    model: M,
    *,
    capacity: int,
    tokens: Sequence[int],
    batch_size: int = 1,
    path: str | os.PathLike[str] | None = None,
    repeats: int = 5,
) -> M:
    """The model with the attention that is fastest here, for each number of new tokens.

    It is measured on the default device, once: the file keeps what was found. XLA's attention stays
    for all other numbers of tokens, where no kernel is at least 5% faster, compiles and gives the
    same numbers, and always on a CPU and for latents.

    Args:
        model: of one device.
        capacity: of a row's cache; all of them live when it is measured.
        tokens: numbers of tokens that are scored at once: the drafted nodes and the root.
        batch_size: rows.
        path: of the file that keeps what was measured; None: it is not kept.
        repeats: times that each is timed.

    Raises:
        InputError: if an argument is out of range.
        OSError: if the file cannot be read or written.

    Example:
        >>> from jspec import models
        >>> model = models.shapes("jspec-800k").model
        >>> fastest(model, capacity=512, tokens=[16]) == model  # on a CPU
        True
    """
    for name, value in (("capacity", capacity), ("batch_size", batch_size), ("repeats", repeats)):
        check_integer(name, value, 1, None)
    for value in tokens:
        check_integer("tokens", value, 1, None)
    candidates = CANDIDATES.get(jax.default_backend(), ())
    if not candidates or getattr(model.config, "latent", None) is not None:
        return model
    where = setting(model, capacity, batch_size)
    known = {} if path is None else load(path, where)
    names = {repr(one) for one in (XLA, *candidates)}
    for count in tokens:
        # Times of other candidates were measured by another version of the sources.
        if count not in known or {*known[count].seconds, *known[count].errors} != names:
            known[count] = measure(where, random_mask(count), candidates, repeats)
            if path is not None:
                save(known, where, path)
    group = where.num_heads // where.num_kv_heads
    chosen = ((group * count, choose(known[count], candidates)) for count in tokens)
    faster = tuple(pair for pair in chosen if pair[1] != XLA)
    return model.clone(attention_impl=ByQueries(faster)) if faster else model


def choose(timing: AttentionTiming, candidates: Sequence[Implementation]) -> Implementation:
    """The fastest of the candidates, if it is faster than XLA's attention, which it is else.

    Example:
        >>> kernel = BlockAttention(past=Triton())
        >>> choose(AttentionTiming(16, {repr(XLA): 1.0, repr(kernel): 0.99}, {}), [kernel]) == XLA
        True
        >>> choose(AttentionTiming(16, {repr(XLA): 1.0, repr(kernel): 0.5}, {}), [kernel]) == kernel
        True
    """
    best = min(candidates, key=lambda one: timing.seconds.get(repr(one), math.inf))
    taken = timing.seconds.get(repr(best), math.inf)
    return best if taken * LEAST_GAIN <= timing.seconds[repr(XLA)] else XLA


def setting(model: Decoder, capacity: int, batch_size: int) -> AttentionSetting:
    """The setting of calls of a model on the default device."""
    from jspec import __version__

    config = model.config
    return AttentionSetting(
        config.num_heads, config.num_kv_heads, config.head_dim,
        getattr(config, "attention_cap", None), jnp.dtype(model.dtype).name, batch_size, capacity,
        jax.devices()[0].device_kind, jax.__version__, __version__,
    )  # fmt: skip


def measure(
    where: AttentionSetting,
    mask: Bool[Array | np.ndarray, "1 N N"],
    candidates: Sequence[Implementation],
    repeats: int = 5,
) -> AttentionTiming:
    """Times the candidates and XLA's attention in turn; the least time of each counts.

    What gives other numbers than XLA's attention is an error.

    Args:
        where: the sizes.
        mask: of ancestors, the same in every row.
        candidates: beside XLA's attention.
        repeats: times that each is timed.
    """
    # Arguments and not constants, of which XLA would compute what it can beforehand.
    given = _arguments(where, mask)

    ready = {repr(XLA): chain(XLA, where.soft_cap)}
    wanted = np.asarray(ready[repr(XLA)](*given)[0], np.float32)
    # Products of float32 may have 10 bits on an accelerator.
    bound = 2e-2 if jnp.dtype(where.dtype).itemsize < 4 else 5e-3
    errors = {}
    for impl in candidates:
        run = chain(impl, where.soft_cap)
        try:
            found = np.asarray(run(*given)[0], np.float32)
        except Exception as error:  # a compiler fails in ways of its own; XLA's attention stays
            said = (str(error).splitlines() or [""])[0]
            errors[repr(impl)] = f"{type(error).__name__}: {said:.200}"
            continue
        off = (np.abs(found - wanted) / (1 + np.abs(wanted))).max()
        if off <= bound:
            ready[repr(impl)] = run
        else:
            errors[repr(impl)] = (
                f"it differs from XLA's attention by {off:.2g}, more than {bound:g}"
            )
    least = dict.fromkeys(ready, math.inf)
    for _ in range(repeats):
        for name, run in ready.items():
            begin = time.perf_counter()
            jax.block_until_ready(run(*given))
            least[name] = min(least[name], (time.perf_counter() - begin) / CHAIN)
    return AttentionTiming(mask.shape[1], least, errors)


def shapes(where: AttentionSetting, tokens: int) -> tuple[Any, Any]:
    """The shapes of what `chain` computes with, of so many new tokens."""
    mask = jax.ShapeDtypeStruct((1, tokens, tokens), bool)
    return jax.eval_shape(partial(_arguments, where), mask)


def _arguments(
    where: AttentionSetting, mask: Bool[Array | np.ndarray, "1 N N"]
) -> tuple[Array, tuple[Array, Array, Array, Past]]:
    batch, dim, tokens = where.batch_size, where.head_dim, mask.shape[1]
    heads, dtype = where.num_kv_heads, jnp.dtype(where.dtype)
    new, held = (batch, heads, tokens, dim), (batch, heads, where.capacity, dim)
    q, k, v, keys, values = _random(
        ((batch, tokens, where.num_heads, dim), new, new, held, held), dtype.name
    )
    masks = jnp.broadcast_to(mask, (batch, tokens, tokens))
    lengths = jnp.full(batch, where.capacity, jnp.int32)
    past = Past(Cached(keys, values, lengths) if where.capacity else None, None)
    return q, (k, v, masks, past)


@partial(jax.jit, static_argnums=(0, 1))
def _random(shapes: tuple[tuple[int, ...], ...], dtype: str) -> list[Array]:
    """Normal numbers, made where they are read."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


def chain(impl: Implementation, soft_cap: float | None) -> Callable[..., tuple[Array, Array]]:
    """A program of `CHAIN` attentions, each of the queries that the one before made."""

    def once(q: Array, held: tuple[Array, Array, Array, Past]) -> Array:
        return attend(q, *held, soft_cap=soft_cap, impl=impl).reshape(q.shape)

    @jax.jit
    def run(q: Array, held: tuple[Array, Array, Array, Past]) -> tuple[Array, Array]:
        first = last = once(q, held)
        for _ in range(CHAIN - 1):
            last = once(last, held)
        return first, last

    return run


def random_mask(nodes: int) -> Bool[Array, "1 N N"]:
    """Ancestors in a random tree, whose nodes hang from any before them, in depth-first order.

    DySpec's Table 5 has such trees.
    """
    draw = np.random.default_rng(0)
    parents = [NO_PARENT, *(int(draw.integers(node)) for node in range(1, nodes))]
    depth = [0] * nodes
    for node in range(1, nodes):
        depth[node] = depth[parents[node]] + 1
    tree = Tree(
        tokens=jnp.zeros((1, nodes), jnp.int32),
        parents=jnp.asarray([parents], jnp.int32),
        valid=jnp.ones((1, nodes), bool),
        depth=max(depth),
        width=nodes,
    )

    @jax.jit  # one program, not a hundred
    def mask(tree: Tree) -> Bool[Array, "1 N N"]:
        return trees.ancestors(trees.reordered(tree, trees.depth_first(tree)))

    return mask(tree)


def save(
    known: Mapping[int, AttentionTiming], where: AttentionSetting, path: str | os.PathLike[str]
) -> None:
    """Writes what was measured in a setting; the file's folder is made if it is not there."""
    held = {
        "format": _FORMAT,
        "setting": dataclasses.asdict(where),
        "timings": [dataclasses.asdict(timing) for timing in known.values()],
    }
    with written_whole(path) as file:
        file.write_text(json.dumps(held, indent=1))


def load(path: str | os.PathLike[str], where: AttentionSetting) -> dict[int, AttentionTiming]:
    """What a file keeps for a setting, by number of tokens; nothing if it is not of that one."""
    try:
        held = plain_json.parsed(Path(path).read_bytes())
        if held["format"] != _FORMAT or held["setting"] != dataclasses.asdict(where):
            return {}
        timings = [AttentionTiming(**timing) for timing in held["timings"]]
        good = all(repr(XLA) in timing.seconds for timing in timings)
        return {timing.tokens: timing for timing in timings} if good else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}  # it is written anew
