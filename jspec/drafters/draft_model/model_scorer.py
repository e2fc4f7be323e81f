"""A draft model as a scorer: the forward passes of one round, and what they leave."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec.drafters.growth.scorer import LevelOutput, append_kv, attention_mask
from jspec.protocols import CausalLM
from jspec.types import Frame, PyTree

NUM_FIRST = 2
"""Tokens of the first forward pass in a round: the one before the root, and the root."""


@dataclass(frozen=True)
class ModelScorer:
    """Scores the nodes of one round's tree with a draft model."""

    model: CausalLM
    params: PyTree
    memory: PyTree
    previous: Int[Array, " B"]
    frame: Frame
    size: int

    def root(self) -> LevelOutput:
        """Scores the token before the root at index 0, and the root at index 1."""
        frame = self.frame
        tokens = jnp.stack([self.previous, frame.root], axis=1)
        positions = jnp.maximum(frame.positions[:, None] + jnp.array([[-1, 0]]), 0)
        follows = frame.positions > 0
        mask = jnp.array([[[True, False], [True, True]]]) & (
            follows[:, None, None] | jnp.eye(2, dtype=bool)[None]
        )
        output = self.model.apply(self.params, tokens, positions, mask, self.memory)
        room = self.size - NUM_FIRST
        return LevelOutput(
            logits=output.logits[:, 1:],
            inherited=jnp.pad(mask[:, 1:], ((0, 0), (0, 0), (0, room))),
            kv=output.tentative.padded(self.size),
        )

    def below(
        self,
        level: Int[Array, ""] | int,
        kv_index: Int[Array, ""] | int,
        tokens: Int[Array, "B W"],
        inherited: Bool[Array, "B W M"],
        kv: Any,
    ) -> LevelOutput:
        """Scores W nodes of one depth in one forward pass of the draft model."""
        positions = jnp.broadcast_to((self.frame.positions + level)[:, None], tokens.shape)
        mask = attention_mask(inherited)
        output = self.model.apply(self.params, tokens, positions, mask, self.memory, kv)
        return LevelOutput(output.logits, *append_kv(inherited, kv, output, kv_index))
