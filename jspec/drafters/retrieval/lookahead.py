"""Lookahead decoding (Fu et al. 2024): a Jacobi window, and its n-grams.

Axes besides those of `jspec.types`, with the letters of the paper where it has some:

    W        columns of the window
    G        most n-grams that are kept for a token
    levels   levels of the window, N - 1 for n-grams of N tokens
    path     most levels of the tree
    grams    n-grams that are inserted
"""

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Flag, Integer
from jspec._validate.options import check_fields
from jspec.drafters.growth.prefix_vote import top_prefixes
from jspec.protocols import Drafter
from jspec.round.request import check_vocabulary
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree

_EMPTY = -1
"""The token at places of the pool that hold no n-gram."""

# How often the first token of the root's n-grams, and of the window, was right, and how often each
# further one where the one before was: greedy texts of the bundled model. A tree of Lookahead alone
# holds all its nodes, whatever their values; merges share out their budget by them.
_POOL_FIRST, _POOL_NEXT = 0.7, 0.75
_WINDOW_FIRST, _WINDOW_NEXT = 0.15, 0.4
_LEAST_VALUE = 1e-30
"""The value of the deepest nodes: not 0, which would leave them out of the tree."""
_MOST_NODES = 4096
"""The largest number of tokens in a tree."""
_MOST_LEVELS = 256
"""The largest number of levels in a tree; their steps are compiled one by one."""


@struct.dataclass
class LookaheadState:
    """The window of each row, and the pool of n-grams."""

    window: Int[Array, "B levels W"]
    """Level 0 is a guess at the text from the root on (column 0 is the root itself, and not
    read); level l has, in each column, the l-th token that the model saw behind level 0."""
    age: Int[Array, " B"]
    """Rounds so far, at most levels - 1: from then on the model wrote all of the window but
    level 0, so that its n-grams are the model's own."""
    pool: Int[Array, "R V G levels"]
    """The tails of the last G distinct n-grams that began with each token, the newest first."""


@dataclass(frozen=True)
class Lookahead(Drafter):
    """Drafts n-grams that begin with the last token, from the model's own pool.

    Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
    arXiv 2402.02057, section 3. Two things share one tree of (N - 1)(W + G) tokens, the root
    included, equal paths once:

    - the pool's n-grams that begin with the root, at most G (the paper's verification branch);
    - the window (its lookahead branch): a spine of W guesses at the text to come, and from each
      node of the spine a branch of N - 2 tokens. A forward pass adds a token to each branch, which
      makes it an n-gram for the pool. Then the window moves on by a token.

    The window follows the model's likeliest tokens, in sampling as in greedy decoding.

    It differs from the authors' code (lade 0.0.2) in four points. The window begins full of tokens
    of the prompt, where theirs is filled in N - 2 rounds that verify nothing; the pool takes
    n-grams from the same round on as theirs. Window nodes that turn out right are accepted too. End
    tokens stay in the window. The pool is one for all rows and survives calls
    (`Result.drafter_state`).

    Memory: 4 * V * G * (N - 1) bytes for a pool.

    Args:
        vocab_size: V of the target.
        window: W, columns of the window; 7 is published, with N = 5 and G = 7.
        ngram: N, tokens of an n-gram (LEVEL in the authors' code).
        guesses: G, most n-grams that are kept and drafted for a token.
        pool_from_prompt: take n-grams from the prompt too.
        per_row: a pool for each row of the batch; else all rows share one.

    Raises:
        InputError: if an option is of another type or out of range.

    Example:
        >>> import jspec
        >>> drafter = jspec.Lookahead(32_000, window=3, ngram=4, guesses=3)
        >>> drafter.levels, drafter.init(batch=1, capacity=64, earlier=None).pool.shape
        (3, (1, 32000, 3, 3))
    """

    vocab_size: int
    _: KW_ONLY
    window: Annotated[int, COUNT] = 7
    ngram: Annotated[int, Integer(2, _MOST_LEVELS)] = 5
    guesses: Annotated[int, COUNT] = 7
    pool_from_prompt: Annotated[bool, Flag()] = False
    per_row: Annotated[bool, Flag()] = False

    def __post_init__(self):
        check_fields(self)
        check_integer("vocab_size", self.vocab_size, 1, None)
        if (size := self.levels * (self.window + self.guesses)) > _MOST_NODES:
            raise InputError(
                f"window {self.window}, ngram {self.ngram} and guesses {self.guesses} make a tree "
                f"of (N - 1)(W + G) = {size} tokens; stay within {_MOST_NODES}"
            )
        if self.depth > _MOST_LEVELS:
            raise InputError(
                f"window {self.window} and ngram {self.ngram} make a tree of {self.depth} levels, "
                f"W + N - 3 or N - 1; stay within {_MOST_LEVELS}"
            )

    @property
    def levels(self) -> int:
        """The number of the window's levels, N - 1: also of an n-gram's tokens behind its first."""
        return self.ngram - 1

    @property
    def depth(self) -> int:
        """The number of levels of the tree: the longer of the window's last path and an n-gram."""
        return max(self.window - 1 + self.levels - 1, self.levels)

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> LookaheadState:
        """Returns an empty window and the earlier state's pool; R is the batch with `per_row`."""
        del capacity
        if earlier is None:
            pool = jnp.full(self._pool_shape(batch), _EMPTY, jnp.int32)
        else:
            self._check_state(earlier, batch)
            pool = jnp.asarray(earlier.pool)
        return LookaheadState(
            window=jnp.zeros((batch, self.levels, self.window), jnp.int32),
            age=jnp.zeros(batch, jnp.int32),
            pool=pool,
        )

    def prefill(self, params: PyTree, state: LookaheadState, chunk: PromptChunk) -> LookaheadState:
        """Returns the first window and, if asked for, the n-grams of a chunk of the prompt.

        N-grams that begin in one chunk and end in the next are left out.
        """
        del params
        check_vocabulary("Lookahead", self.vocab_size, chunk.output.logits.shape[-1])
        tokens, ends = chunk.tokens, chunk.read_lengths + 1
        window = jax.vmap(self.first_window)(state.window, tokens, chunk.positions, ends)
        pool = state.pool
        if self.pool_from_prompt and tokens.shape[1] >= self.ngram:
            starts = jnp.arange(tokens.shape[1] - self.levels, dtype=jnp.int32)
            grams = tokens[:, starts[:, None] + jnp.arange(self.ngram, dtype=jnp.int32)[None]]
            inside = starts[None] + self.ngram <= ends[:, None]
            pool = self.insert_ngrams(pool, grams[..., 0], grams[..., 1:], inside)
        # A window of the prompt is not the model's own.
        return replace(state, window=window, pool=pool, age=jnp.zeros_like(state.age))

    def first_window(
        self,
        window: Int[Array, "levels W"],
        tokens: Int[Array, " T"],
        position: Int[Array, ""],
        length: Int[Array, ""],
    ) -> Int[Array, "levels W"]:
        """Returns the first window: random tokens of a row's text.

        Args:
            window: of the text before.
            tokens: the text from `position` on.
            position: of the first of them.
            length: how many of them are text.
        """
        bits = jax.random.bits(jax.random.key(0), (self.levels, self.window), jnp.uint32)
        place = (bits % (position + length).astype(jnp.uint32)).astype(jnp.int32) - position
        return jnp.where(place >= 0, tokens[jnp.maximum(place, 0)].astype(jnp.int32), window)

    def draft(self, params: PyTree, state: LookaheadState, frame: Frame) -> tuple[Tree, None]:
        """Returns the window's paths and the root's n-grams, as the prefixes of one tree."""
        del params
        batch = len(frame.root)
        self._check_state(state, batch)
        step = np.arange(self.depth)
        value = np.maximum(_WINDOW_FIRST / self.window * _WINDOW_NEXT**step, _LEAST_VALUE)
        value = np.where(self._on_path, value, 0).astype(np.float32)
        window_values = jnp.broadcast_to(value[None], (batch, *value.shape))

        owner = jnp.arange(batch, dtype=jnp.int32) % state.pool.shape[0]
        grams = state.pool[owner, frame.root]
        valid = grams[..., 0] != _EMPTY
        # Of the probability that one of the n-grams is right, each newer one has twice the share.
        share = jnp.where(valid, 0.5 ** np.arange(self.guesses, dtype=np.float32)[None], 0.0)
        share = share / jnp.maximum(share.sum(-1, keepdims=True), 1.0)
        falling = (_POOL_FIRST * _POOL_NEXT**step).astype(np.float32)
        value = jnp.maximum(share[..., None] * falling[None, None], _LEAST_VALUE)
        valid_steps = valid[..., None] & (step < self.levels)[None, None]
        pool_values = jnp.where(valid_steps, value, 0.0)

        beyond = ((0, 0), (0, 0), (0, self.depth - self.levels))
        tokens = jnp.concatenate([self._paths(state.window), jnp.pad(grams, beyond)], axis=1)
        values = jnp.concatenate([window_values, pool_values], axis=1)
        nodes = self.levels * (self.window + self.guesses) - 1
        return top_prefixes(frame.root, tokens, values, nodes), None

    def update(
        self, params: PyTree, state: LookaheadState, aux: None, feedback: Feedback
    ) -> LookaheadState:
        """Returns the state after a round: a moved window, and its n-grams in the pool.

        A column whose end was not verified, since a merge left it out, gets no new token.
        """
        del params, aux
        window, tree = state.window, feedback.tree
        end, verified = self._ends(window, tree)
        likeliest = feedback.output.logits.argmax(-1).astype(jnp.int32)
        newest = jnp.take_along_axis(likeliest, end, axis=1)
        # An n-gram: the token of the spine, its branch, and what the model says next.
        moved = jnp.concatenate([window[:, 1:], newest[:, None]], axis=1)
        first = window[:, 0].at[:, 0].set(tree.tokens[:, 0])
        mature = (state.age >= self.levels - 1) & ~feedback.done
        pool = self.insert_ngrams(
            state.pool, first, moved.swapaxes(1, 2), verified & mature[:, None]
        )
        moved = moved.at[:, -1].set(jnp.where(verified, newest, window[:, -1]))
        return LookaheadState(
            window=jnp.where(feedback.done[:, None, None], window, moved),
            age=jnp.where(feedback.done, state.age, jnp.minimum(state.age + 1, self.levels - 1)),
            pool=pool,
        )

    def insert_ngrams(
        self,
        pool: Int[Array, "R V G levels"],
        first: Int[Array, "B grams"],
        tails: Int[Array, "B grams levels"],
        live: Bool[Array, "B grams"],
    ) -> Int[Array, "R V G levels"]:
        """Returns the pool after n-grams of each row went in, row by row and one by one.

        One that is there already becomes the newest; else the oldest of its token is forgotten.
        Those that are not `live` do not go in.
        """
        batch, count = first.shape
        owner = jnp.repeat(jnp.arange(batch, dtype=jnp.int32) % pool.shape[0], count)
        first, tails, live = first.ravel(), tails.reshape(-1, self.levels), live.ravel()
        age = jnp.arange(self.guesses, dtype=jnp.int32)

        def insert(gram, pool):
            old = pool[owner[gram], first[gram]]
            same = (old == tails[gram][None]).all(-1)
            gone = jnp.where(same.any(), same.argmax().astype(jnp.int32), self.guesses - 1)
            moved = jnp.where((age <= gone)[:, None], jnp.roll(old, 1, axis=0), old)
            moved = moved.at[0].set(tails[gram])
            return pool.at[owner[gram], first[gram]].set(jnp.where(live[gram], moved, old))

        return jax.lax.fori_loop(0, batch * count, insert, pool)

    @cached_property
    def _on_path(self) -> Bool[np.ndarray, "W path"]:
        """True at the levels that each column's path has: along the spine and then its branch."""
        column = np.arange(self.window)[:, None]
        return np.arange(self.depth)[None] < column + self.levels - 1

    def _paths(self, window: Int[Array, "B levels W"]) -> Int[Array, "B W path"]:
        """Returns the tokens from below the root to the end of each column's branch."""
        columns, steps = np.arange(self.window)[:, None], np.arange(self.depth)[None]
        spine = steps < columns
        level = np.where(spine, 0, np.minimum(steps - columns + 1, self.levels - 1))
        column = np.where(spine, np.minimum(steps + 1, self.window - 1), columns)
        return window[:, level, column]

    def _ends(
        self, window: Int[Array, "B levels W"], tree: Tree
    ) -> tuple[Int[Array, "B W"], Bool[Array, "B W"]]:
        """Returns the last node of each column's branch, and True if it was verified."""
        paths = self._paths(window)
        node = jnp.zeros(paths.shape[:2], jnp.int32)
        verified = jnp.ones(node.shape, bool)
        for step in range(self.depth):
            child = (
                (tree.parents[:, None] == node[..., None])
                & (tree.tokens[:, None] == paths[..., step, None])
                & tree.valid[:, None]
            )
            on_path = self._on_path[:, step][None]
            node = jnp.where(on_path, child.argmax(-1).astype(jnp.int32), node)
            verified &= child.any(-1) | ~on_path
        return node, verified

    def _pool_shape(self, batch: int) -> tuple[int, int, int, int]:
        return batch if self.per_row else 1, self.vocab_size, self.guesses, self.levels

    def _check_state(self, state: PyTree, batch: int) -> None:
        shape = self._pool_shape(batch)
        if not isinstance(state, LookaheadState):
            fault = f"is a {type(state).__name__}"
        elif state.pool.shape != shape or state.pool.dtype != np.int32:
            fault = f"holds a pool of shape {state.pool.shape} and dtype {state.pool.dtype}"
        else:
            return
        raise InputError(
            f"drafter_state {fault}, and this Lookahead needs a LookaheadState with a pool of "
            f"{shape} of int32; pass the state of a Lookahead with the same vocab_size, ngram, "
            "guesses and per_row"
        )
