"""Functions as a `jspec.protocols.CausalLM`: models of other libraries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec.memory import KVCache, TreeKV, commit, init, until
from jspec.types import Output, PyTree

if TYPE_CHECKING:  # half a second of every start otherwise
    from flax import nnx


class Seen(NamedTuple):
    """Context that the new tokens may see: S cached tokens, and M nodes scored before."""

    keys: tuple[Float[Array, "B H S+M D"], ...]
    """Per layer; zero in slots that hold no token."""
    values: tuple[Float[Array, "B H S+M D"], ...]


Forward = Callable[
    [Any, Int[Array, "B N"], Int[Array, "B N"], Bool[Array, "B N S+M+N"], Seen],
    tuple[Float[Array, "B N V"], tuple[Array, ...], tuple[Array, ...]],
]
"""(params, tokens, positions, mask, seen) -> (logits, keys, values); see `FunctionModel`."""


@dataclass(frozen=True)
class FunctionModel:
    """A function as a model: of a Linen or Equinox module, or of a plain function.

    Its params are passed to `forward` unchanged.

    Args:
        forward: from (params, tokens, positions, mask, seen) it makes (logits, keys, values): token
            i sees all entries j of `seen` and of the new tokens, in this order, with mask[b, i, j];
            keys and values are those of the new tokens, per layer [B, H, N, D]. A function of a
            module, so that it is the same in every call. `LayerCaches` makes one of a library's
            own call.
        vocab_size: V.
        num_layers, num_kv_heads, head_dim: sizes of the memory.
        context: the most positions that it can place; None: it has no bound.
        dtype: of keys and values.

    Example:
        >>> import jspec, jax.numpy as jnp
        >>> def bigram(table, tokens, positions, mask, seen):
        ...     none = (jnp.zeros((*tokens.shape, 1))[:, None],)
        ...     return table[tokens], none, none
        >>> sizes = dict(vocab_size=16, num_layers=1, num_kv_heads=1, head_dim=1)
        >>> model = jspec.models.FunctionModel(bigram, **sizes)
        >>> jspec.decode(model, jnp.eye(16), [[1, 2]], max_new_tokens=4).lengths.tolist()
        [4]
    """

    forward: Forward
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    context: int | None = None
    dtype: Any = jnp.float32

    def init_memory(self, batch: int, capacity: int) -> KVCache:
        """Returns empty keys and values."""
        sizes = self.num_layers, self.num_kv_heads, self.head_dim
        return init(batch, capacity, *sizes, self.dtype)

    commit, until = staticmethod(commit), staticmethod(until)

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """Returns the forward pass over what is seen; see `jspec.protocols.CausalLM`."""
        batch, new = tokens.shape
        cache = self.init_memory(batch, 0) if memory is None else memory
        live = jnp.arange(cache.capacity) < cache.lengths[:, None]
        # Slots beyond may hold anything, NaN too, which a weight of 0 would not keep out.
        past = [
            tuple(jnp.where(live[:, None, :, None], layer, 0) for layer in part)
            for part in (cache.keys, cache.values)
        ]
        if nodes is not None:
            past = [
                tuple(jnp.concatenate(both, axis=2) for both in zip(part, later, strict=True))
                for part, later in zip(past, (nodes.keys, nodes.values), strict=True)
            ]
        seen = jnp.broadcast_to(live[:, None], (batch, new, cache.capacity))
        both = jnp.concatenate([seen, mask], axis=-1)
        logits, keys, values = self.forward(params, tokens, positions, both, Seen(*past))
        return Output(logits.astype(jnp.float32), None, TreeKV(tuple(keys), tuple(values)))


@dataclass(frozen=True)
class _OfModule:
    """The forward pass of an NNX module, from its arrays alone."""

    graph: "nnx.GraphDef"
    forward: Forward

    def __hash__(self) -> int:
        return hash(self.forward)  # configurations of libraries, in the graph, may have no hash

    def __call__(self, params: PyTree, *inputs: Any) -> Any:
        from flax import nnx

        return self.forward(nnx.merge(self.graph, params), *inputs)


def from_nnx(module: "nnx.Module", forward: Forward, **sizes: Any) -> tuple[FunctionModel, PyTree]:
    """Returns a Flax NNX module as a model and its params.

    Args:
        module: with its weights.
        forward: as in `FunctionModel`, and gets the module in place of params.
        sizes: as in `FunctionModel`.

    Returns:
        The model and its params, a dictionary of arrays: a step flattens no `nnx.Variable`. Make
        a model once, and pass new params to it: another model is another program.

    Raises:
        InputError: if it is not an NNX module, or a part of it is in training mode.

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
    for path, part in nnx.iter_modules(module):
        rate = getattr(part, "rate", getattr(part, "dropout_rate", 0))
        drops = getattr(part, "deterministic", None) is False
        drops &= isinstance(rate, int | float) and rate > 0
        if drops or getattr(part, "use_running_average", None) is False:
            raise InputError(
                f"module is in training mode: {'.'.join(map(str, path))}, a {type(part).__name__}, "
                "gives other logits in every call or batch; call module.eval() before"
            )
    graph, state = nnx.split(module)
    return FunctionModel(_OfModule(graph, forward), **sizes), nnx.to_pure_dict(state)


@dataclass(frozen=True)
class LayerCaches:
    """The forward pass of a library with its own cache of layers, such as gemma.

    Keys and values are copied into such a cache and the new ones out of it, in every call.

    Args:
        call: (params, tokens, positions, cache, mask) -> (logits, cache). The cache has, for each
            layer, `layer_0` and so on, a dictionary: `k` and `v` [B, S+N, H, D],
            `end_index` [B], where the call writes, and `positions` [B, S+N] of the tokens that
            are there.
    """

    call: Callable[..., tuple[Array, Any]]

    def __call__(
        self, params: PyTree, tokens: Array, positions: Array, mask: Array, seen: Seen
    ) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
        batch, new = tokens.shape
        before = seen.keys[0].shape[2]
        place = jnp.broadcast_to(jnp.arange(before + new, dtype=jnp.int32), (batch, before + new))
        room = ((0, 0), (0, new), (0, 0), (0, 0))
        cache = {
            f"layer_{number}": {
                "k": jnp.pad(keys.swapaxes(1, 2), room),
                "v": jnp.pad(values.swapaxes(1, 2), room),
                "end_index": jnp.full(batch, before, jnp.int32),
                "positions": place,
            }
            for number, (keys, values) in enumerate(zip(*seen, strict=True))
        }
        logits, cache = self.call(params, tokens, positions, cache, mask)
        layers = [cache[f"layer_{number}"] for number in range(len(seen.keys))]
        keys, values = (
            tuple(layer[part][:, before:].swapaxes(1, 2) for layer in layers) for part in "kv"
        )
        return logits, keys, values
