"""Everything but the forward: whole rounds of a target whose forward is a look-up in a table.

Such a round drafts, walks, commits to a cache of the full shape and updates exactly as a round of
the model does, and compiles in seconds. Its text is a loop that every drafter soon learns, so that
walks are as long as they get.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

import jspec
from benchmarks.accelerator import forced
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.rounds import TOKENS_PER_ROUND, Loop, about, per_round
from benchmarks.accelerator.shapes import Scale
from jspec import methods
from jspec.memory import TreeKV, commit, init, until
from jspec.models import LlamaConfig, Loaded
from jspec.protocols import Drafter
from jspec.types import PyTree

SECTION = "overhead"
METHODS = ("auto", "token_recycling", "token_recycling+suffix", "suffix", "prompt_lookup")
"""Methods that need no more of a target than its shape."""


@struct.dataclass
class Table:
    """The weights of `HollowModel`."""

    logits: Float[Array, "R V"]
    """Rows of scores, looked up by token."""
    state: Float[Array, " E"]
    key: Float[Array, "H 1 D"]


@dataclass(frozen=True)
class HollowModel:
    """A target of a model's shape without its layers: the scores of a token stand in a table."""

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
        """A random table."""
        config = self.config
        return Table(
            logits=jax.random.normal(key, (rows, config.vocab_size)),
            state=jnp.ones(config.hidden_size, self.dtype),
            key=jnp.ones((config.num_kv_heads, 1, config.head_dim), self.dtype),
        )

    def init_memory(self, batch: int, capacity: int) -> jspec.KVCache:
        """An empty cache of the model's shape."""
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
        """An output of the model's shapes that costs the writing of it."""
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


def standalone(scale: Scale, batch: int) -> dict[str, tuple[Drafter, PyTree]]:
    """Plain decoding and a forced tree: the drafters that are no methods of the library."""
    return {
        "plain": (jspec.Autoregressive(), None),
        "forced": (
            forced.drafter(scale.config.vocab_size, scale.nodes),
            forced.script(batch, TOKENS_PER_ROUND[0]),
        ),
    }


def measure(cells: Cells, scale: Scale) -> None:
    """One row for plain decoding, for each forced acceptance and each method, at each batch."""
    model = HollowModel(scale.config, scale.dtype)
    params = model.init(jax.random.key(0))
    target = Loaded(model=model, params=params, tokenizer=None, eos=(), bos=None)

    @lru_cache(maxsize=1)
    def loop(name: str, batch: int) -> Loop:
        drafter, weights = standalone(scale, batch).get(name) or methods.build(name, target)[1:]
        return Loop(model, params, drafter, weights, batch, scale)

    def row(name: str, batch: int, tokens: int | None) -> dict:
        weights = tokens and forced.script(batch, tokens)
        found = per_round({name: (loop(name, batch), weights)}, scale)[name]
        return {**about(loop(name, batch)), **found}

    known = [("plain", None), *(("forced", tokens) for tokens in TOKENS_PER_ROUND)]
    for batch in scale.round_batches:
        for name, tokens in (*known, *((name, None) for name in METHODS)):
            if tokens is None and name != "plain" and name not in methods.names():
                cells.skip(f"{name}: the library has no method of that name")
                continue
            measured = partial(row, name, batch, tokens)
            cells.run(measured, method=name, batch=batch, forced=tokens)
