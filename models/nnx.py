"""A Flax NNX module as a `jspec.protocols.CausalLM`: weights apart, one mask over past and new."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import memory as caches
from jspec._validate.errors import InputError
from jspec.memory import KVCache, TreeKV
from jspec.types import Output, PyTree

if TYPE_CHECKING:  # half a second of every start otherwise
    from flax import nnx


class Seen(NamedTuple):
    """What the new tokens may see of those before: S cached ones, and M nodes scored before."""

    keys: tuple[Float[Array, "B H S+M D"], ...]
    """Per layer; zero in slots that hold no token."""
    values: tuple[Float[Array, "B H S+M D"], ...]


Forward = Callable[
    [Any, Int[Array, "B N"], Int[Array, "B N"], Bool[Array, "B N S+M+N"], Seen],
    tuple[Float[Array, "B N V"], tuple[Array, ...], tuple[Array, ...]],
]
"""(module, tokens, positions, mask, seen) -> (logits, keys, values); see `from_nnx`."""


@dataclass(frozen=True)
class NNXModel:
    """What is static of an NNX module, and the way to call it. Made by `from_nnx`."""

    graph: "nnx.GraphDef"
    forward: Forward
    vocab_size: int
    context: int | None
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: Any

    def init_memory(self, batch: int, capacity: int) -> KVCache:
        """Empty keys and values."""
        sizes = self.num_layers, self.num_kv_heads, self.head_dim
        return caches.init(batch, capacity, *sizes, self.dtype)

    commit, until = staticmethod(caches.commit), staticmethod(caches.until)

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """The module's forward; see `jspec.protocols.CausalLM`."""
        batch, new = tokens.shape
        cache = self.init_memory(batch, 0) if memory is None else memory
        live = jnp.arange(cache.capacity) < cache.lengths[:, None]
        # Slots beyond may hold anything, NaN too, which a weight of 0 would not keep out.
        held = [
            tuple(jnp.where(live[:, None, :, None], layer, 0) for layer in part)
            for part in (cache.keys, cache.values)
        ]
        if nodes is not None:
            held = [
                tuple(jnp.concatenate(both, axis=2) for both in zip(part, later, strict=True))
                for part, later in zip(held, (nodes.keys, nodes.values), strict=True)
            ]
        seen = jnp.broadcast_to(live[:, None], (batch, new, cache.capacity))
        both = jnp.concatenate([seen, mask], axis=-1)
        from flax import nnx

        module = nnx.merge(self.graph, params)
        logits, keys, values = self.forward(module, tokens, positions, both, Seen(*held))
        return Output(logits.astype(jnp.float32), None, TreeKV(tuple(keys), tuple(values)))


def from_nnx(
    module: "nnx.Module",
    forward: Forward,
    *,
    vocab_size: int,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    context: int | None = None,
    dtype: Any = jnp.float32,
) -> tuple[NNXModel, PyTree]:
    """A Flax NNX module as a model and its params.

    Args:
        module: with its weights.
        forward: calls it. From (module, tokens, positions, mask, seen) it makes (logits, keys,
            values): token i sees all entries j of `seen` and of the new tokens, in this order, with
            mask[b, i, j]; keys and values are those of the new tokens, per layer [B, H, N, D]. A
            function of a module, so that it is the same in every call.
        vocab_size: V.
        num_layers, num_kv_heads, head_dim: sizes of the memory.
        context: the most positions that it can place; None: it has no bound.
        dtype: of keys and values.

    Returns:
        The model and its params, an `nnx.State`.

    Raises:
        InputError: if it is no NNX module.

    Example:
        >>> import jspec, jax.numpy as jnp
        >>> from flax import nnx
        >>> def bigram(table, tokens, positions, mask, seen):
        ...     none = (jnp.zeros((*tokens.shape, 1))[:, None],)
        ...     return table(tokens), none, none
        >>> table = nnx.Embed(16, 16, rngs=nnx.Rngs(0))
        >>> sizes = dict(vocab_size=16, num_layers=1, num_kv_heads=1, head_dim=1)
        >>> model, params = jspec.models.from_nnx(table, bigram, **sizes)
        >>> jspec.decode(model, params, [[1, 2]], max_new_tokens=4).lengths.tolist()
        [4]
    """
    from flax import nnx

    if not isinstance(module, nnx.Module):
        raise InputError(
            f"module is a {type(module).__name__}; pass a flax.nnx.Module, and use a Linen module "
            "as it is"
        )
    graph, params = nnx.split(module)
    sizes = vocab_size, context, num_layers, num_kv_heads, head_dim
    return NNXModel(graph, forward, *sizes, dtype), params
