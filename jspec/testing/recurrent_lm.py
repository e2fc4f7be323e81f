"""A recurrent language model, whose memory is one state a row: a model's memory is its own."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec.types import Output, PyTree


@struct.dataclass
class Memory:
    """The model's state after the committed tokens."""

    state: Float[Array, "B E"]


@dataclass(frozen=True)
class RecurrentLM:
    """A gated linear recurrence, h' = a(t) * h + b(t) for a token t, and logits of h.

    In a tree each node's state comes from its parent's, level by level, so that a node has the
    bits of its token in plain decoding. The nodes' states are tentative, and `commit` takes the
    state of the last accepted one. Such a memory cannot be cut back: there is no `until`, so the
    model serves as a target, and not as a draft model.

    Args:
        vocab_size: V.
        hidden_size: E.

    Raises:
        InputError: if a size is below 1.

    Example:
        >>> import jspec
        >>> from jspec.testing import RecurrentLM
        >>> model = RecurrentLM(vocab_size=7)
        >>> ask = dict(prompt=[[1, 2, 3]], max_new_tokens=6)
        >>> plain = jspec.decode(model, model.init(), **ask)
        >>> drafted = jspec.decode(model, model.init(), drafter=jspec.PromptLookup(2), **ask)
        >>> bool((plain.tokens == drafted.tokens).all())
        True
    """

    vocab_size: int = 23
    hidden_size: int = 16
    context: int | None = None

    def __post_init__(self):
        for name in ("vocab_size", "hidden_size"):
            check_integer(name, getattr(self, name), 1, None)

    def init(self, seed: int = 0) -> dict[str, Array]:
        """Returns the params, from numpy's generator: the same on every device."""
        rng = np.random.default_rng(seed)
        table = self.vocab_size, self.hidden_size
        params = dict(
            gates=rng.uniform(0.3, 0.95, table),
            inputs=rng.normal(size=table),
            head=rng.normal(size=table[::-1]),
        )
        return {name: jnp.asarray(array, jnp.float32) for name, array in params.items()}

    def init_memory(self, batch: int, capacity: int) -> Memory:
        """Returns the state before any token; a row holds as many tokens as one likes."""
        del capacity
        return Memory(jnp.zeros((batch, self.hidden_size), jnp.float32))

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: Memory,
    ) -> Output:
        """Scores N tokens of each row, as `CausalLM.apply` says."""
        del positions  # a state knows how far it is
        batch, count = tokens.shape
        depth = mask.sum(-1)
        # The parent of a node is its deepest ancestor; a root's is what is committed.
        above = jnp.where(mask & ~jnp.eye(count, dtype=bool)[None], depth[:, None], 0)
        parent = jnp.where(depth > 1, above.argmax(-1), count)[..., None]
        gates, inputs = params["gates"][tokens], params["inputs"][tokens]

        def next_level(_, states):
            all_states = jnp.concatenate([states, memory.state[:, None]], axis=1)
            return gates * jnp.take_along_axis(all_states, parent, axis=1) + inputs

        # After as many steps as it is deep, a node's state is its own.
        states = jnp.zeros((batch, count, self.hidden_size), jnp.float32)
        states = jax.lax.fori_loop(0, depth.max(), next_level, states)
        logits = states @ params["head"]
        return Output(logits=logits, hidden=states, tentative=states)

    def commit(
        self,
        memory: Memory,
        tentative: Float[Array, "B N E"],
        path: Int[Array, "B P"],
        counts: Int[Array, " B"],
    ) -> Memory:
        """Returns the state of the last of the first `counts` nodes of the path."""
        last = jnp.take_along_axis(path, jnp.maximum(counts - 1, 0)[:, None], axis=1)
        state = jnp.take_along_axis(tentative, last[..., None], axis=1)[:, 0]
        return Memory(jnp.where(counts[:, None] > 0, state, memory.state))
