"""A target that replays a text: rounds are counted, and none is scored anew."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec.memory import KVCache, TreeKV, commit, init, until
from jspec.types import Output, PyTree


@dataclass(frozen=True)
class Replay:
    """A target that knows what it wrote: its tokens and states along the text of each row.

    A drafted node after an accepted path has its position and is scored as the text goes on;
    what other nodes are scored is never read. So rounds are those of decoding, without its cost.
    Of other tokens than the text's the "likeliest" of each place have an order, if they are given.
    """

    vocab_size: int
    context: int | None = None

    def init_memory(self, batch: int, capacity: int) -> KVCache:
        return init(batch, capacity, 1, 1, 1, jnp.float32)

    commit, until = staticmethod(commit), staticmethod(until)

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N N"],
        memory: KVCache,
        nodes: TreeKV | None = None,
    ) -> Output:
        del mask, memory, nodes
        text, states = params["tokens"], params["hidden"]
        following = jnp.minimum(positions + 1, text.shape[1] - 1)
        following = jnp.take_along_axis(text, following, axis=1)
        at = jnp.minimum(positions, text.shape[1] - 1)[..., None]
        none = jnp.zeros((len(tokens), 1, tokens.shape[1], 1), jnp.float32)
        # Far above any noise.
        logits = 1e4 * jax.nn.one_hot(following, self.vocab_size, dtype=jnp.float32)
        if "likeliest" in params:
            ids = jnp.take_along_axis(params["likeliest"], at, axis=1)
            ranks = jnp.arange(ids.shape[-1], 0.0, -1)
            rows, places = jnp.indices(tokens.shape, sparse=True)
            logits = logits.at[rows[..., None], places[..., None], ids].add(ranks)
        return Output(
            logits=logits,
            hidden=jnp.take_along_axis(states, at, axis=1),
            tentative=TreeKV((none,), (none,)),
        )
