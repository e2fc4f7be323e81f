"""A target whose forward is a look-up in a table: what its rounds take is all but the forward.

Such a round drafts, walks, commits to a cache of the full shape and updates exactly as a round of
the model does, and compiles in seconds.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

import jspec
from jspec.memory import TreeKV, commit, init, until
from jspec.models import LlamaConfig


@struct.dataclass
class Table:
    """The weights of `HollowModel`."""

    logits: Float[Array, "R V"]
    """Rows of scores, looked up by token."""
    state: Float[Array, " E"]
    key: Float[Array, "H 1 D"]


@dataclass(frozen=True)
class HollowModel:
    """A target of a model's shape without its layers: a table holds the scores of each token."""

    config: LlamaConfig
    dtype: str

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context(self) -> int:
        return self.config.context

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    def init(self, key: jax.Array, rows: int = 256) -> Table:
        """Makes a random table."""
        config = self.config
        return Table(
            logits=jax.random.normal(key, (rows, config.vocab_size)),
            state=jnp.ones(config.hidden_size, self.dtype),
            key=jnp.ones((config.num_kv_heads, 1, config.head_dim), self.dtype),
        )

    def init_memory(self, batch: int, capacity: int) -> jspec.KVCache:
        """Makes an empty cache of the model's shape."""
        config = self.config
        return init(
            batch, capacity, config.num_layers, config.num_kv_heads, config.head_dim, self.dtype
        )

    commit, until = staticmethod(commit), staticmethod(until)

    def apply(
        self,
        params: Table,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: jspec.KVCache,
        nodes: TreeKV | None = None,
    ) -> jspec.Output:
        """Returns an output of the model's shapes that costs the writing of it."""
        del positions, mask, memory, nodes
        config, (batch, width) = self.config, tokens.shape
        key = jnp.broadcast_to(params.key, (batch, config.num_kv_heads, width, config.head_dim))
        output = jspec.Output(
            logits=params.logits[tokens % len(params.logits)],
            hidden=jnp.broadcast_to(params.state, (batch, width, config.hidden_size)),
            tentative=TreeKV((key,) * config.num_layers, (key,) * config.num_layers),
        )
        # A forward's output is written before anything reads it; a table's could be fused away.
        return jax.lax.optimization_barrier(output)
