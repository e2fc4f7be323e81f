"""Token Recycling (Luo et al. 2024): candidates of earlier forward passes are drafted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import Flag, Integer
from jspec._validate.options import check_fields
from jspec.arrays.top_k import top_k
from jspec.drafters.retrieval.adjacency_matrix import read_cells, read_lines, write_lines
from jspec.drafters.retrieval.token_pairs import NONE, pair_key, slot_of
from jspec.protocols import Drafter
from jspec.round.request import check_vocabulary
from jspec.tree import Template, likeliest
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree

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
"""80 nodes, Fig. 5 of the paper: 6 levels, 81 tokens a forward pass with the root. (The text
counts "80 including the root"; the figure and the authors' code have 80 besides it.)"""

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
"""80 nodes by measured acceptance of the bundled model on articles, plays, instructions,
novels and addresses (`benchmarks.prompts.LEARNING`), as printed by
`python -m benchmarks.recycling.measured_tree --count 20` on 2026-11-21 (two x86 cores). The same
command finds the best tree of another model."""

# How often a child of each rank is right where its parent was, with a warm matrix: between what a
# model of 260,000 parameters (0.45, 0.10, ..) and the bundled one (0.75, 0.12, ..) gave.
ACCEPTANCE = (0.6, 0.12, 0.05, 0.035, 0.025, 0.02, 0.015, 0.015)


def fit_tree(num_speculative_tokens: int, k: int = 8) -> Template:
    """Returns the tree of so many drafted nodes that is likely to be accepted furthest."""
    check_integer("num_speculative_tokens", num_speculative_tokens, 1, None)
    check_integer("k", k, 1, None)
    return likeliest(ACCEPTANCE[:k], num_speculative_tokens)


@struct.dataclass
class MatrixState:
    """The likely tokens after each token and after pairs of tokens; R is the batch, or 1."""

    lines: Int[Array, "R V+P k"]
    """The lines of single tokens, then of pairs."""
    keys: UInt[Array, "R P"] | None
    """The pair that each of the lines of pairs is of; 0 where it is of none. None: no pairs."""
    before: Int[Array, " B"] | None
    """The token before each row's last one; `NONE` where there is none. None: no pairs."""


@dataclass(frozen=True)
class TokenRecycling(Drafter):
    """Drafts a fixed tree of ranks from an adjacency matrix of likely tokens.

    Luo et al. 2024, "Turning Trash into Treasure", arXiv 2408.08696. Line t of the matrix holds
    the k tokens that the target last thought likeliest after token t, and a node of rank r below
    token t drafts the r-th of them (Algorithm 1). The matrix starts at zero, is filled by the
    logits of all verified nodes, rejected ones included, and survives calls
    (`Result.drafter_state`). Nothing is trained.

    With `pairs`, jspec's own extension, pairs of tokens have lines too, filled by the same nodes. A
    node after two known tokens drafts from the line of the pair where that was written, and else
    from the token's. A pair's line is found by a hash of the pair; of two pairs with the same line
    the last has it.

    Args:
        vocab_size: V of the target.
        template: which ranks are drafted (section 3.2 of the paper). What a tree costs depends on
            the device: the published 80 nodes, the default, suit GPUs; 8 to 16 suit CPUs, see
            `jspec.drafters.retrieval.token_recycling.fit_tree`.
        k: candidates kept per token.
        update_on_prefill: fill the matrix from the prompt's logits too; all T x V of them are then
            computed at once. The paper does not.
        per_row: a matrix for each row of the batch; else all rows share one.
        pairs: extra rows for pairs of tokens, 4 k bytes each: a power of two such as 131072; 0, as
            published: none.

    Raises:
        InputError: if an option is of another type, out of range, or not in the matrix.

    Example:
        >>> import jspec
        >>> drafter = jspec.TokenRecycling(32_000, jspec.tree.branching([2, 1]), k=2)
        >>> drafter.template.num_nodes, drafter.init(1, 64, None).lines.shape
        (5, (1, 32000, 2))
    """

    vocab_size: int
    template: Template = PUBLISHED
    k: Annotated[int, Integer(1)] = 8
    update_on_prefill: Annotated[bool, Flag()] = False
    per_row: Annotated[bool, Flag()] = False
    pairs: Annotated[int, Integer(0)] = 0

    def __post_init__(self):
        check_integer("vocab_size", self.vocab_size, 1, None)
        check_integer("k", self.k, 1, self.vocab_size, "the vocabulary")
        check_fields(self)
        if not isinstance(self.template, Template):
            raise InputError(
                f"template is {self.template!r:.80}; pass a jspec.Template, such as "
                "jspec.tree.branching([3, 1])"
            )
        if self.pairs.bit_count() > 1:
            raise InputError(
                f"pairs is {self.pairs}; pass a power of two such as {1 << self.pairs.bit_length()}"
                ", or 0"
            )
        if self.template.max_rank >= self.k:
            raise InputError(
                f"the template drafts rank {self.template.max_rank} and the matrix holds "
                f"ranks 0 .. {self.k - 1}; pass k={self.template.max_rank + 1} or another template"
            )

    def shape(self, batch: int) -> tuple[int, int, int]:
        """Returns the shape of the lines, (R, V + P, k)."""
        return batch if self.per_row else 1, self.vocab_size + self.pairs, self.k

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> MatrixState:
        """Returns the zero matrix, or the earlier one; R is the batch with `per_row`, else 1."""
        del capacity
        if earlier is None:
            shape = self.shape(batch)
            lines = jnp.zeros(shape, jnp.int32)
            keys = jnp.zeros((shape[0], self.pairs), jnp.uint32) if self.pairs else None
        else:
            self.check_state(earlier, batch)
            lines, keys = jax.tree.map(jnp.asarray, (earlier.lines, earlier.keys))
        before = jnp.full(batch, NONE, jnp.int32) if self.pairs else None
        return MatrixState(lines, keys, before)

    def check_state(self, state: PyTree, batch: int) -> None:
        """Raises InputError unless the state is a matrix of this drafter."""
        shape = self.shape(batch)
        kind = f"a {type(state).__name__}"
        if isinstance(state, MatrixState):
            num_pairs = 0 if state.keys is None else state.keys.shape[-1]
            if (state.lines.shape, state.lines.dtype, num_pairs) == (shape, np.int32, self.pairs):
                return
            kind = f"a matrix of {state.lines.shape} of {state.lines.dtype} with {num_pairs} pairs"
        raise InputError(
            f"drafter_state is {kind}, and this TokenRecycling needs a matrix of {shape} of int32 "
            f"with {self.pairs} pairs; pass the state of a drafter with the same vocab_size, k, "
            "pairs and per_row"
        )

    def draft(self, params: PyTree, state: MatrixState, frame: Frame) -> tuple[Tree, None]:
        """Drafts level by level, one gather each (Algorithm 1): child of rank r is M[parent, r]."""
        del params
        template = self.template
        self.check_state(state, len(frame.root))
        tokens = frame.root[:, None]
        before = None if state.before is None else state.before[:, None]
        for level in template.levels:
            above = template.parents[level]
            parents = tokens[:, above]
            if before is None:
                lines = parents
            else:
                lines = self._lines(state, before[:, above], parents)
                before = jnp.concatenate([before, parents], axis=1)
            children = read_cells(state.lines, lines, template.ranks[level])
            tokens = jnp.concatenate([tokens, children], axis=1)
        return template.fill(tokens), None

    def candidates(
        self, state: MatrixState, before: Int[Array, "B N"], tokens: Int[Array, "B N"]
    ) -> Int[Array, "B N k"]:
        """Returns the line of each token, likeliest first: its pair's with the token before it if
        that was written, else its own. A line that was never written is of zeros.
        """
        lines = tokens if state.keys is None else self._lines(state, before, tokens)
        return read_lines(state.lines, lines)

    def _lines(
        self, state: MatrixState, before: Int[Array, "B N"], tokens: Int[Array, "B N"]
    ) -> Int[Array, "B N"]:
        """Returns the lines of tokens: their pairs' with the tokens before, or else their own."""
        assert state.keys is not None, "there are pairs"
        key, slot = self._places(before, tokens)
        keys = read_lines(state.keys[..., None], slot)[..., 0]
        return jnp.where((before >= 0) & (keys == key), self.vocab_size + slot, tokens)

    def _places(
        self, before: Int[Array, "B N"], tokens: Int[Array, "B N"]
    ) -> tuple[UInt[Array, "B N"], Int[Array, "B N"]]:
        """Returns the keys of pairs, and which of the lines of pairs are theirs."""
        key = jnp.asarray(pair_key(before, tokens, self.vocab_size)) + np.uint32(1)  # 0: no pair
        return key, jnp.asarray(slot_of(key, self.pairs))

    def prefill(self, params: PyTree, state: MatrixState, chunk: PromptChunk) -> MatrixState:
        """Returns the state after a chunk, which teaches only with `update_on_prefill`."""
        del params
        logits, read, before, moved = chunk.output.logits, chunk.read, None, state
        check_vocabulary(type(self).__name__, self.vocab_size, logits.shape[-1])
        if state.before is not None:
            before = jnp.concatenate([state.before[:, None], read[:, :-1]], axis=1)
            moved = _move_on(state, read, chunk.read_lengths)
        if not self.update_on_prefill:
            return moved
        live = jnp.arange(read.shape[1], dtype=jnp.int32)[None] < chunk.read_lengths[:, None]
        return self.recycle(moved, before, read, logits, live)

    def update(
        self, params: PyTree, state: MatrixState, aux: None, feedback: Feedback
    ) -> MatrixState:
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
            moved = _move_on(state, text, feedback.counts)
        return self.recycle(moved, before, tokens, scored.output.logits, live)

    def recycle(
        self,
        state: MatrixState,
        before: Int[Array, "B N"] | None,
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> MatrixState:
        """Sets M[token] to its top k in order (section 3.3); the last of equal tokens wins."""
        _, best = top_k(logits, self.k)
        if before is None or state.keys is None:
            return replace(state, lines=write_lines(state.lines, tokens, live, best))
        (key, slot), paired = self._places(before, tokens), live & (before >= 0)
        lines = write_lines(
            state.lines,
            jnp.concatenate([tokens, self.vocab_size + slot], axis=1),
            jnp.concatenate([live, paired], axis=1),
            jnp.concatenate([best, best], axis=1),
        )
        keys = write_lines(state.keys[..., None], slot, paired, key[..., None])[..., 0]
        return replace(state, lines=lines, keys=keys)

    def merged(self, states: Sequence[MatrixState]) -> MatrixState:
        """Returns one matrix of replicas' lines, each from one that knows it.

        Which one, of several, goes round by the line, so that no replica's text prevails.
        """
        stacks, count = jnp.stack([state.lines for state in states]), len(states)
        nonempty = (stacks != 0).any(-1)
        turn = (jnp.arange(count)[:, None, None] - jnp.arange(stacks.shape[2])) % count
        source = jnp.where(nonempty, turn, count).argmin(0)[None]
        lines = jnp.take_along_axis(stacks, source[..., None], axis=0)[0]
        if not self.pairs:
            return replace(states[0], lines=lines)
        keys = jnp.stack([state.keys for state in states if state.keys is not None])
        keys = jnp.take_along_axis(keys, source[..., self.vocab_size :], axis=0)[0]
        return replace(states[0], lines=lines, keys=keys)


def _move_on(state: MatrixState, text: Int[Array, "B T"], counts: Int[Array, " B"]) -> MatrixState:
    """Returns the state with the last of `counts` tokens before the root, if there are some."""
    assert state.before is not None, "there are pairs"
    last = jnp.take_along_axis(text, jnp.maximum(counts - 1, 0)[:, None], axis=1)[:, 0]
    return replace(state, before=jnp.where(counts > 0, last, state.before))
