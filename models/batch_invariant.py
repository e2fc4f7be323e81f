"""Attention whose sums do not depend on how a token came: along a tree, or alone."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.arguments import check_integer
from jspec.memory import Rounded, dequantise
from jspec.models.attention import Cached, Implementation, by_blocks, finite
from jspec.models.block_attention import visits
from jspec.models.block_attention.implementation import fit, pad_queries
from jspec.models.block_attention.kernel import AttentionWork, Tail, Triton
from jspec.models.online_softmax import LOW, Softmax, merge, scores_of, softmax_over


@dataclass(frozen=True)
class BatchInvariant(Implementation):
    """One shape for all rounds, and attention in the order of positions: bits do not differ.

    Two things make a token's numbers depend on how it was scored: the shape of the products, and
    the order in which attention adds up. So every round of up to `num_tokens` tokens is filled up
    to as many (`jspec.round.forward`), plain ones too. And a query adds all slots up to `depth`
    positions before its own by one product, and the rest one by one in the order of positions, from
    the slots and from the nodes of its path. Longer parts of a prompt are read as by XLA.

    jspec's own. vLLM's mode of this name (`VLLM_BATCH_INVARIANT`) has kernels whose sums do not
    depend on the shape; these are XLA's, and only equal shapes have equal sums.

    Args:
        num_tokens: tokens of a round, the root included: at least 2, and as many as the largest.
        depth: of the deepest tree; None: of a chain of so many tokens.
        kernel: starts one kernel for all of a layer's attention, as `BlockAttention` does where
            it can; None: XLA.

    Raises:
        InputError: if a number is out of range. While a call is traced: if its trees are larger.

    Example:
        >>> from jspec.models import BatchInvariant, Llama, LlamaConfig
        >>> config = LlamaConfig(
        ...     vocab_size=100, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4,
        ...     num_kv_heads=2, head_dim=4, context=64,
        ... )
        >>> Llama(config, attention_impl=BatchInvariant(16)).attention_impl.depth
        15
    """

    num_tokens: int
    depth: Any = None
    kernel: Triton | None = None

    def __post_init__(self):
        check_integer("num_tokens", self.num_tokens, 2, None)
        most = self.num_tokens - 1
        depth = most if self.depth is None else self.depth
        check_integer("depth", depth, 1, most, "what a chain of num_tokens has")
        object.__setattr__(self, "depth", int(depth))

    def softmax(
        self,
        queries: Float[Array, "B H G*N D"],
        keys: Float[Array, "B H K D"] | tuple[Float[Array, "B H K _"], ...],
        values: Float[Array, "B H K V"],
        seen: Bool[Array, "B N K"],
        cached: Cached | None,
        oldest: Int[Array, "B N"] | None,
        soft_cap: float | None,
    ) -> Softmax:
        """As in `Implementation`."""
        new, known = seen.shape[1:]
        if cached is None or new > self.num_tokens:
            return super().softmax(queries, keys, values, seen, cached, oldest, soft_cap)
        # A token sees one path, which was scored from the root down: as many nodes come between as
        # are seen behind a node.
        behind = jnp.cumsum(seen[..., ::-1], axis=-1)[..., ::-1] - seen
        back = jnp.arange(self.depth, -1, -1, dtype=jnp.int32)[None, None]
        count = seen.sum(-1, dtype=jnp.int32)[..., None]
        slots = cached.lengths[:, None, None] + count - 1 - back
        nodes = (seen[:, :, None] & (behind[:, :, None] == back[..., None])).argmax(-1)
        first = jnp.zeros_like(count[..., 0]) if oldest is None else jnp.maximum(oldest, 0)
        ends = jnp.minimum(slots[..., 0], cached.lengths[:, None])
        order = _Order(slots, nodes, back < count, first, ends)
        given = queries, keys, values, cached, order, soft_cap
        launch = fit(self.kernel, queries, cached.slots)
        whole = launch is not None and not isinstance(cached.keys, Rounded | tuple)
        softmax = _by_kernel(launch, *given) if whole else _by_xla(*given)
        if known > self.depth + 1:  # nodes below deeper ones than there should be
            above = self.own(queries, keys, values, seen & (behind > self.depth), soft_cap)
            both = (jnp.stack(pair, axis=2) for pair in zip(above, softmax, strict=True))
            softmax = merge(Softmax(*both))
        return softmax


class _Order(NamedTuple):
    """The keys of each token in the order of positions: a block of slots, then T one by one."""

    slots: Int[Array, "B N T"]
    """The places of the last T in the cache, as they are when all are committed."""
    nodes: Int[Array, "B N T"]
    """Or among the nodes."""
    on_path: Bool[Array, "B N T"]
    """Which of the two."""
    first: Int[Array, "B N"]
    """The oldest slot that is seen."""
    ends: Int[Array, "B N"]
    """The slot behind the last of the block."""


def _by_kernel(
    launch: Any,
    queries: Float[Array, "B H G*N D"],
    keys: Any,
    values: Float[Array, "B H K V"],
    cached: Any,
    order: _Order,
    soft_cap: float | None,
) -> Softmax:
    """Returns the softmax by one kernel, whose sums have this order in any shape."""
    group = queries.shape[2] // order.ends.shape[1]
    slots = jnp.where(order.slots < order.first[..., None], -1, order.slots)
    places = jnp.where(order.on_path, cached.slots + order.nodes, slots)
    limits = jnp.stack([order.first, order.ends], axis=-1)
    limits, places = (
        pad_queries(jnp.tile(x, (1, group, 1)), launch.tile) for x in (limits, places)
    )
    blocks = visits.of_range(limits, launch.tile, launch.block, cached.slots)
    rows, tail = pad_queries(queries, launch.tile), Tail(places, *finite(keys, values))
    slots = cached.keys, cached.values
    work = AttentionWork(rows, *slots, limits, blocks, cached.layer, tail)
    found = launch(work, visits.in_range, soft_cap)
    return Softmax(*(part[:, :, : queries.shape[2]] for part in found))


def _by_xla(
    queries: Float[Array, "B H G*N D"],
    keys: Any,
    values: Float[Array, "B H K V"],
    cached: Cached,
    order: _Order,
    soft_cap: float | None,
) -> Softmax:
    """Returns the softmax by one product over all slots, and one over the last of each token."""
    batch, heads, count, _ = queries.shape
    new = order.ends.shape[1]
    group = count // new

    def tail(held: Any, places: Int[Array, "B N T"]) -> Any:
        take = jax.vmap(lambda part, places: jnp.take(part, places, axis=1, mode="clip"))
        found = jax.tree.map(lambda part: take(part, places), held)
        return jax.tree.map(
            lambda part: dequantise(part, queries.dtype),
            found,
            is_leaf=lambda part: isinstance(part, Rounded),
        )

    # [B, H, N, T, D]
    near_keys, near_values = jax.tree.map(
        lambda node, slot: jnp.where(order.on_path[:, None, ..., None], node, slot),
        tail((keys, values), order.nodes),
        tail(cached.block(heads, 0, cached.slots), order.slots),
    )
    by_node = queries.reshape(batch, heads, group, new, -1).swapaxes(2, 3)
    scores = scores_of(by_node, near_keys, soft_cap)
    seen = order.on_path | (order.slots >= order.first[..., None])
    scores = jnp.where(seen[:, None, :, None], scores, LOW)
    softmax = Softmax(
        *(
            part.swapaxes(2, 3).reshape(batch, heads, count, -1)
            for part in softmax_over(scores, near_values)
        )
    )
    ends, first = (jnp.tile(x, (1, group)) for x in (order.ends, order.first))
    return by_blocks(cached.slots, soft_cap, softmax, queries, cached._replace(lengths=ends), first)
