"""A language model made to catch mistakes: its next token depends on every token before it."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec._validate.errors import InputError
from jspec.memory import KVCache, TreeKV, commit, init, until
from jspec.types import Output, PyTree

_SUMS = 509
"""Number of the model's moods; a prime, so that sums of codes reach all."""
_PLACES = 128
"""Positions after which the codes of positions repeat."""


@dataclass(frozen=True)
class PrefixLM:
    """A tiny `CausalLM` without weights to train, exact in float32 and quick to compile.

    Its logits are two rows of tables: the habit of the last token, so that text repeats itself and
    drafts are often right; and a whim that is chosen by the sum of a code for each (token,
    position) of the prefix. The sum is taken over the memory, the nodes and the mask as attention
    takes it. One token too many, too few or in the wrong place gives another whim, so a mistake in
    what is seen or committed shows within a few tokens. The sums are integers: no rounding can make
    two forward passes differ.

    Args:
        vocab_size: V.
        context: most positions; logits beyond it are NaN, as a model's with a table of positions
            may be. None: no bound.
        hidden_size: E of the hidden states, which are rows of tables too.

    Raises:
        InputError: if a size is below 1.

    Example:
        >>> from jspec.testing import PrefixLM
        >>> model = PrefixLM(vocab_size=23)
        >>> params = model.init(seed=0)
        >>> params["habits"].shape
        (23, 23)
    """

    vocab_size: int = 23
    context: int | None = 48
    hidden_size: int = 16

    def __post_init__(self):
        for name in ("vocab_size", "context", "hidden_size"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} is {value}; a model has at least 1")

    def init(self, seed: int = 0) -> dict[str, Array]:
        """Returns the tables, from numpy's generator: the same on every device.

        Args:
            seed: of the generator.

        Returns:
            The params that `apply` takes.
        """
        rng = np.random.default_rng(seed)
        size, wide = self.vocab_size, self.hidden_size
        favourite = np.eye(size)[rng.integers(size, size=size)]
        tables = dict(
            token_codes=rng.integers(1, _SUMS, size),
            place_codes=rng.integers(1, _SUMS, _PLACES),
            # A favourite successor is followed about two times in three.
            habits=4.5 * favourite + rng.normal(size=(size, size)),
            whims=1.5 * rng.normal(size=(_SUMS, size)),
            habit_states=rng.normal(size=(size, wide)),
            whim_states=rng.normal(size=(_SUMS, wide)),
        )
        return {
            name: jnp.asarray(table, jnp.int32 if table.dtype.kind == "i" else jnp.float32)
            for name, table in tables.items()
        }

    def init_memory(self, batch: int, capacity: int) -> KVCache:
        """Returns keys and values: the key of a token is its position, and its value the token."""
        return init(batch, capacity, layers=1, heads=1, head_dim=1, dtype=jnp.float32)

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
        """Scores N tokens of each row, as `CausalLM.apply` says."""
        batch, count = tokens.shape
        keys, values = (x[:, None, :, None].astype(jnp.float32) for x in (positions, tokens))
        sources, seen = [TreeKV((keys,), (values,))], mask
        if nodes is not None:
            sources = [nodes, *sources]
        if memory is not None:
            live = jnp.arange(memory.capacity)[None] < memory.lengths[:, None]
            live = jnp.broadcast_to(live[:, None], (batch, count, memory.capacity))
            sources, seen = [memory, *sources], jnp.concatenate([live, mask], axis=-1)
        places, words = (
            jnp.concatenate([x[0][:, 0, :, 0] for x in parts], axis=1)
            for parts in ([x.keys for x in sources], [x.values for x in sources])
        )
        # Cleared before they are numbers: what is not seen may be anything, NaN too.
        codes = self._codes(params, *(jnp.where(seen, x[:, None], 0) for x in (places, words)))
        total = jnp.where(seen, codes, 0).sum(-1) % _SUMS
        last = tokens.clip(0, self.vocab_size - 1)
        logits = params["habits"][last] + params["whims"][total]
        if self.context is not None:
            logits = jnp.where((positions < self.context)[..., None], logits, jnp.nan)
        hidden = params["habit_states"][last] + params["whim_states"][total]
        return Output(logits=logits, hidden=hidden, tentative=TreeKV((keys,), (values,)))

    def _codes(self, params: PyTree, places: Array, words: Array) -> Int[Array, "B N _"]:
        """Returns the code of a token at a position, which depends on the order."""
        place = params["place_codes"][places.astype(jnp.int32) % _PLACES]
        word = params["token_codes"][words.astype(jnp.int32).clip(0, self.vocab_size - 1)]
        return place * word % _SUMS
