"""Attention by the kernel, which a model may take in the place of XLA's."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.memory import Rounded
from jspec.models.attention import Cached, Implementation, finite
from jspec.models.block_attention import visits
from jspec.models.block_attention.kernel import AttentionWork, Triton
from jspec.models.online_softmax import Softmax, merge


@dataclass(frozen=True)
class BlockAttention(Implementation):
    """Attention by a kernel that skips blocks in which no query of a tile sees a key.

    After DySpec (Xiong et al. 2024), appendix C: of the mask of ancestors most blocks are empty,
    more so if the nodes are in a good order, see `jspec.tree.heavy_paths`. The committed past is
    read block by block, up to the last live slot, once for all queries of a tile.

    What the kernel cannot do is left to XLA: a head's size that Triton does not take, a JAX without
    Triton, fewer slots than a block, arrays on a mesh of several devices, latents, and a memory in
    8 bits. It has no gradients.

    Args:
        nodes: starts the kernel over the tree's nodes; None: XLA.
        past: starts it over the cache; None: XLA.

    Example:
        >>> from jspec.models import Llama, LlamaConfig, block_attention
        >>> config = LlamaConfig(
        ...     vocab_size=100, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4,
        ...     num_kv_heads=2, head_dim=16, context=64,
        ... )
        >>> past = block_attention.Triton(tile=128, block=64, num_splits=8, num_warps=8)
        >>> Llama(config, attention_impl=BlockAttention(past=past)).attention_impl.past.tile
        128
    """

    nodes: Triton | None = None
    past: Triton | None = None

    def own(
        self,
        queries: Float[Array, "B H G*N D"],
        keys: Float[Array, "B H K D"] | tuple[Float[Array, "B H K _"], ...],
        values: Float[Array, "B H K D"],
        seen: Bool[Array, "B N K"],
        soft_cap: float | None,
    ) -> Softmax:
        """As in `Implementation`; a query that sees nothing has the softmax over nothing."""
        count = queries.shape[2]
        launch = fit(self.nodes, queries, self.nodes.block if self.nodes else 0)
        if launch is None or isinstance(keys, tuple):
            return super().own(queries, keys, values, seen, soft_cap)
        # Score and weight of a value that is not finite become NaN for those that see it alone.
        more = -values.shape[2] % launch.block
        keys, values = (
            jnp.pad(x, [(0, 0), (0, 0), (0, more), (0, 0)]) for x in finite(keys, values)
        )
        words = visits.pack_bits(jnp.pad(seen, [(0, 0), (0, 0), (0, more)]))
        # A tile holds all group-mates of few nodes, which leaves most blocks to skip.
        group = count // seen.shape[1]
        rows = pad_queries(_swap_axes(queries, group), launch.tile)
        words = pad_queries(jnp.repeat(words, group, axis=1), launch.tile)
        listed = visits.of_bits(words, launch.tile, launch.block)
        work = AttentionWork(rows, keys, values, words, listed)
        found = launch(work, visits.in_bits, soft_cap)
        return Softmax(*(_swap_axes(part[:, :, :count], count // group) for part in found))

    def with_past(
        self,
        softmax: Softmax,
        queries: Float[Array, "B H G*N D"],
        cached: Cached,
        oldest: Int[Array, "B N"] | None,
        soft_cap: float | None,
    ) -> Softmax:
        """As in `Implementation`."""
        batch, _, count, _ = queries.shape
        launch = fit(self.past, queries, cached.slots)
        if launch is None or isinstance(cached.keys, Rounded | tuple):
            return super().with_past(softmax, queries, cached, oldest, soft_cap)
        if oldest is None:
            first = jnp.zeros((batch, count), jnp.int32)
        else:
            first = jnp.tile(oldest.astype(jnp.int32), (1, count // oldest.shape[1]))
        ends = jnp.broadcast_to(cached.lengths[:, None].astype(jnp.int32), first.shape)
        limits = pad_queries(jnp.stack([first, ends], axis=-1), launch.tile)
        listed = visits.of_range(limits, launch.tile, launch.block, cached.slots)
        rows = pad_queries(queries, launch.tile)
        keys: Any = cached.keys
        values: Any = cached.values
        work = AttentionWork(rows, keys, values, limits, listed, cached.layer)
        found = launch(work, visits.in_range, soft_cap)
        parts = (
            jnp.stack([own, past[:, :, :count]], axis=2)
            for own, past in zip(softmax, found, strict=True)
        )
        return merge(Softmax(*parts))


OF_LARGE_TREES = BlockAttention(nodes=Triton(64, 32))
"""The default for a round of many new tokens on a GPU, with the tiles that were timed there."""


def fit(launch: Triton | None, queries: Float[Array, "B H Q D"], slots: int) -> Triton | None:
    """Returns the launch with the sizes of a call; None where the kernel does not take it."""
    mesh = jax.typeof(queries).sharding.mesh
    # XLA cannot split a kernel over devices.
    if launch is None or not (mesh.empty or mesh.size == 1):
        return None
    return launch.with_sizes(queries.shape[2], slots, queries.shape[3])


def _swap_axes(array: Float[Array, "B H A*B D"], first: int) -> Float[Array, "B H B*A D"]:
    """Returns the two shared axes swapped; `first` is the size of the first."""
    batch, heads, both, dim = array.shape
    parts = array.reshape(batch, heads, first, both // first, dim)
    return parts.swapaxes(2, 3).reshape(array.shape)


def pad_queries(array: Array, tile: int) -> Array:
    """Returns the array with its last query repeated, until tiles divide them."""
    width = [(0, 0)] * array.ndim
    width[-2] = (0, -array.shape[-2] % tile)
    return jnp.pad(array, width, mode="edge")
