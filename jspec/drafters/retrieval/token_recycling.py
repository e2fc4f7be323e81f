"""Token Recycling (Luo et al. 2024): the candidates of earlier forwards are the next drafts."""

import os
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jspec.base import Feedback, Frame, Output, PyTree, Tree
from jspec.errors import InputError
from jspec.request import check_vocabulary
from jspec.sampling import top_k
from jspec.tree import Template, likeliest

# Fig. 5 of the paper: 80 drafted nodes in 6 levels, 81 tokens per forward with the root. (The text
# counts "80 including the root"; the figure and the authors' code have 80 besides it.)
PUBLISHED = Template(
    tuple(
        tuple(map(int, path))
        for path in """
        0 1 2 3 4 5 6 7
        00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70
        000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070
        100 101 110 200 300 400 500
        0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000
        00000 00001 00002 00010 00020 00100 01000 10000
        000000 000001 000100
        """.split()
    )
)

MEASURED = Template(
    tuple(
        tuple(map(int, path))
        for path in """
        0 1 2 3 4 5 6 7
        00 01 02 03 04 05 10 11 12 20 21 30 40 50
        000 001 002 003 010 011 020 030 040 100 101 110 200 300 400
        0000 0001 0002 0010 0011 0020 0100 0101 0110 0200 1000 1001 1010 1100 2000 3000
        00000 00001 00002 00010 00020 00100 01000 02000 10000 20000
        000000 000001 000010 000100 001000 010000 100000
        0000000 0000100 0001000 0010000 0100000 1000000
        00000000 00010000
        000000000
        0000000000
        """.split()
    )
)
"""80 nodes by measured acceptance of the bundled model on articles, plays, instructions, novels
and addresses (`benchmarks.prompts.LEARNING`): `python -m benchmarks.recycling_tree --count 20`
printed it on 2026-11-21 (two x86 cores). The same command finds the best tree of another model."""

# How often a child of each rank is right where its parent was, with a warm matrix: between what a
# model of 260,000 parameters (0.45, 0.10, ..) and the bundled one (0.75, 0.12, ..) gave.
_ACCEPTED = (0.6, 0.12, 0.05, 0.035, 0.025, 0.02, 0.015, 0.015)


def fitted(nodes: int, k: int = 8) -> Template:
    """The likeliest tree of so many drafted nodes, for devices on which 81 tokens a forward cost
    more than they bring.

    Args:
        nodes: drafted nodes, without the root.
        k: candidates that the matrix holds, 1 .. 8.
    """
    return likeliest(_ACCEPTED[:k], nodes + 1)


def write(cells: Array, line: Int[Array, "B N"], live: Bool[Array, "B N"], new: Array) -> Array:
    """Cells [R, V, k] with lines replaced; of equal lines the last one that is live wins.

    Args:
        cells: of any type.
        line: which of the R x V lines each node writes.
        live: whether it writes at all.
        new: [B, N, k] what it writes.
    """
    flat = cells.reshape(-1, cells.shape[-1])
    line = jnp.where(live, line, len(flat)).ravel()
    # A scatter with repeated indices has no order: find each line's last writer, drop the rest.
    order = jnp.arange(line.shape[0], dtype=jnp.int32)
    last = jnp.full(len(flat), -1, jnp.int32).at[line].max(order, mode="drop")
    wins = last.at[line].get(mode="fill", fill_value=-1) == order
    line = jnp.where(wins, line, len(flat))
    return flat.at[line].set(new.reshape(-1, new.shape[-1]), mode="drop").reshape(cells.shape)


@dataclass(frozen=True)
class TokenRecycling:
    """Drafts from an adjacency matrix M: row t holds the tokens that last looked likely after t.

    M starts at zero and survives calls (`Result.drafter_state`). Its only source is the logits of
    verified nodes, the rejected ones included; nothing is trained.

    Args:
        vocab_size: V of the target.
        template: which ranks are drafted (section 3.2). The cost of a tree depends on the device:
            the published one suits GPUs, 8 to 16 nodes suit CPUs.
        k: candidates kept per token.
        update_on_prefill: fill M from the prompt's logits too, all T x V of which are then computed
            at once. The paper does not.
        per_row: a matrix for each row of the batch, instead of one that all rows share.

    Raises:
        InputError: if the template asks for a rank that the matrix does not hold.
    """

    vocab_size: int
    template: Template = PUBLISHED
    k: int = 8
    update_on_prefill: bool = False
    per_row: bool = False

    def __post_init__(self):
        if not 1 <= self.k <= self.vocab_size:
            raise InputError(f"k is {self.k}; keep 1 .. {self.vocab_size} candidates per token")
        if self.template.max_rank >= self.k:
            raise InputError(
                f"the template drafts rank {self.template.max_rank} and the matrix holds "
                f"ranks 0 .. {self.k - 1}; pass k={self.template.max_rank + 1} or another template"
            )

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> Int[Array, "R V k"]:
        """The zero matrix, or the earlier one; R is the batch with `per_row`, else 1."""
        del slots
        wanted = (batch if self.per_row else 1, self.vocab_size, self.k)
        if earlier is None:
            return jnp.zeros(wanted, jnp.int32)
        shape, dtype = getattr(earlier, "shape", None), getattr(earlier, "dtype", None)
        if shape != wanted or dtype != np.int32:
            raise InputError(
                f"drafter_state is a matrix of shape {shape} and dtype {dtype}, and this call "
                f"needs {wanted} of int32; pass the state of a drafter with the same vocab_size, "
                "k and per_row"
            )
        return jnp.asarray(earlier)

    def prefill(
        self,
        params: PyTree,
        state: Int[Array, "R V k"],
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> Int[Array, "R V k"]:
        del params
        check_vocabulary("TokenRecycling", self.vocab_size, output.logits.shape[-1])
        if not self.update_on_prefill:
            return state
        return self._recycle(
            state, prompt, output.logits, jnp.arange(prompt.shape[1]) < lengths[:, None]
        )

    def draft(
        self, params: PyTree, state: Int[Array, "R V k"], frame: Frame
    ) -> tuple[Tree, Int[Array, "R V k"]]:
        """Level by level, one gather each (Algorithm 1): child of rank r is M[parent, r]."""
        del params
        template = self.template
        owner = self._owner(state, len(frame.root))[:, None]
        tokens = frame.root[:, None]
        for level in template.levels:
            parents = tokens[:, template.parents[level]]
            children = state[owner, parents, template.ranks[level]]
            tokens = jnp.concatenate([tokens, children], axis=1)
        return template.fill(tokens), state

    def update(
        self, params: PyTree, state: Int[Array, "R V k"], feedback: Feedback
    ) -> Int[Array, "R V k"]:
        """All nodes teach, accepted or not; not those of a row's last round (as published)."""
        del params
        tree, output = feedback.scored.tree, feedback.scored.output
        live = tree.valid & ~feedback.done[:, None]
        return self._recycle(state, tree.tokens, output.logits, live)

    def _owner(self, state: Int[Array, "R V k"], batch: int) -> Int[Array, " B"]:
        """Which matrix each row reads."""
        return jnp.arange(batch) % state.shape[0]

    def _recycle(
        self,
        state: Int[Array, "R V k"],
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> Int[Array, "R V k"]:
        """M[token] = its top k tokens, in order (section 3.4); the last of equal tokens wins."""
        _, best = top_k(logits, self.k)
        line = self._owner(state, tokens.shape[0])[:, None] * self.vocab_size + tokens
        return write(state, line, live, best)

    def save(self, state: Int[Array, "R V k"], path: str | os.PathLike) -> None:
        """Writes the matrix to a safetensors file; if interrupted, an older file stays whole."""
        path = Path(path)
        temporary = path.with_name(path.name + ".part")
        save_file({"matrix": np.asarray(state)}, temporary)
        os.replace(temporary, path)

    def restore(self, path: str | os.PathLike) -> Int[Array, "R V k"]:
        """A matrix written by `save`, for `drafter_state`.

        Raises:
            InputError: if the file is damaged, or of another vocabulary or k.
        """
        if not Path(path).is_file():
            raise InputError(f"{path} is no file; save a matrix there first")
        try:
            with safe_open(path, framework="numpy") as file:
                matrix = file.get_tensor("matrix")
        except SafetensorError as error:
            raise InputError(
                f"{path} is not a matrix saved by TokenRecycling ({error}); delete it"
            ) from error
        if matrix.shape[1:] != (self.vocab_size, self.k) or matrix.dtype != np.int32:
            raise InputError(
                f"{path} holds a matrix of shape {matrix.shape} and this drafter needs "
                f"[rows, {self.vocab_size}, {self.k}]; save one with the same vocab_size and k"
            )
        if matrix.size and not 0 <= matrix.min() <= matrix.max() < self.vocab_size:
            raise InputError(
                f"{path} holds tokens {matrix.min()} .. {matrix.max()}, outside the vocabulary of "
                f"{self.vocab_size}; delete it"
            )
        return jnp.asarray(matrix)
