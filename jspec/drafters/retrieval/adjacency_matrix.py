"""The adjacency matrix of both Token Recyclings, filled by the logits of verified nodes.

Line t of an adjacency matrix [V, k] holds k tokens that looked likely after token t. R matrices
are one that all rows of the batch share (R = 1), or one for each row (R = B).
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jspec._validate.arguments import check_integer
from jspec._validate.options import check_fields
from jspec.protocols import Drafter
from jspec.round.request import check_vocabulary
from jspec.types import Feedback, PromptChunk, PyTree


def read_cells(
    matrix: Shaped[Array, "R V k"], tokens: Int[Array, "B N"], ranks: Int[np.ndarray, " N"]
) -> Shaped[Array, "B N"]:
    """Returns one cell of each token's line: of a rank."""
    # Matrix by matrix: rows' matrices are then read on the devices of their rows.
    own = tokens.reshape(matrix.shape[0], -1, tokens.shape[1])
    return jax.vmap(lambda lines, tokens: lines[tokens, ranks])(matrix, own).reshape(tokens.shape)


def read_lines(matrix: Shaped[Array, "R V k"], tokens: Int[Array, "B N"]) -> Shaped[Array, "B N k"]:
    """Returns the line of each token."""
    # Of one line XLA makes a slice, which is read again wherever it is used, and a matrix that is
    # read after it was written is copied whole. Of two it makes a gather, which is read once.
    twice = jnp.repeat(tokens, 2, axis=1) if tokens.size == 1 else tokens
    # Matrix by matrix, as `read_cells`.
    lines = jax.vmap(lambda matrix, tokens: matrix[tokens])(
        matrix, twice.reshape(matrix.shape[0], -1)
    )
    return lines.reshape(*twice.shape, -1)[:, : tokens.shape[1]]


def write_lines(
    matrix: Shaped[Array, "R V k"],
    tokens: Int[Array, "B N"],
    live: Bool[Array, "B N"],
    lines: Shaped[Array, "B N k"],
) -> Shaped[Array, "R V k"]:
    """Returns the matrix with the lines of some tokens replaced.

    Where several nodes write one line, the last of them wins, row after row of the batch.
    """

    def write(matrix, tokens, live, lines):
        size = matrix.shape[0]
        line = jnp.where(live, tokens, size)
        # A scatter with repeated indices has no order: find each line's last writer, drop the rest.
        order = jnp.arange(line.shape[0], dtype=jnp.int32)
        last = jnp.full(size, -1, jnp.int32).at[line].max(order, mode="drop")
        wins = last.at[line].get(mode="fill", fill_value=-1) == order
        return matrix.at[jnp.where(wins, line, size)].set(lines, mode="drop")

    def split(array):
        return array.reshape(matrix.shape[0], -1, *array.shape[2:])

    # Matrix by matrix: one index over all cells would not fit into 32 bits for many rows.
    return jax.vmap(write)(matrix, split(tokens), split(live), split(lines))


class MatrixDrafter(Drafter):
    """A drafter whose matrix learns from all nodes of every round, and from the prompt if asked."""

    vocab_size: int
    k: int
    update_on_prefill: bool
    per_row: bool

    def check_options(self) -> None:
        """Raises InputError if there can be no such matrix."""
        check_integer("vocab_size", self.vocab_size, 1, None)
        check_integer("k", self.k, 1, self.vocab_size, "the vocabulary")
        check_fields(self)

    def shape(self, batch: int) -> tuple[int, int, int]:
        """Returns the shape of the matrix, (R, V, k)."""
        return batch if self.per_row else 1, self.vocab_size, self.k

    @abstractmethod
    def check_state(self, state: PyTree, batch: int) -> None:
        """Raises InputError unless the state is this drafter's, for such a batch."""

    @abstractmethod
    def recycle(
        self,
        state: Any,
        before: Int[Array, "B N"] | None,
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> Any:
        """Returns the state after the target scored tokens; the same if none of them is live."""

    def prefill(self, params: PyTree, state: Any, chunk: PromptChunk) -> Any:
        """Returns the state after a chunk, which teaches only with `update_on_prefill`."""
        del params
        logits, read, before, moved = chunk.output.logits, chunk.read, None, state
        check_vocabulary(type(self).__name__, self.vocab_size, logits.shape[-1])
        if state.before is not None:
            before = jnp.concatenate([state.before[:, None], read[:, :-1]], axis=1)
            moved = _moved(state, read, chunk.read_lengths)
        if not self.update_on_prefill:
            return moved
        live = jnp.arange(read.shape[1], dtype=jnp.int32)[None] < chunk.read_lengths[:, None]
        return self.recycle(moved, before, read, logits, live)

    def update(self, params: PyTree, state: Any, aux: None, feedback: Feedback) -> Any:
        """Returns the state with all verified nodes in the matrix, accepted or not.

        A row's last round teaches nothing, as published: its text goes no further.
        """
        del params, aux
        scored, before, moved = feedback.scored, None, state
        tokens, parents = scored.tree.tokens, scored.tree.parents
        live = scored.tree.valid & ~feedback.done[:, None]
        if feedback.skip_expensive_updates is not None:
            live &= ~feedback.skip_expensive_updates
        if state.before is not None:
            above = jnp.take_along_axis(tokens, jnp.maximum(parents, 0), axis=1)
            before = above.at[:, 0].set(state.before)
            # The last of what was emitted is the new root.
            text = jnp.concatenate([tokens[:, :1], feedback.emitted], axis=1)
            moved = _moved(state, text, feedback.counts)
        return self.recycle(moved, before, tokens, scored.output.logits, live)


def _moved(state: Any, text: Int[Array, "B T"], counts: Int[Array, " B"]) -> Any:
    """Returns the state with the last of `counts` tokens before the root, if there are some."""
    last = jnp.take_along_axis(text, jnp.maximum(counts - 1, 0)[:, None], axis=1)[:, 0]
    return replace(state, before=jnp.where(counts > 0, last, state.before))
