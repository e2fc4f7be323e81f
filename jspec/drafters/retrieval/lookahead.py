"""Lookahead decoding (Fu et al. 2024): a Jacobi window beside the text, and the n-grams it left."""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from jspec.base import Feedback, Frame, Output, PyTree, Tree
from jspec.drafters.growth.prefix_vote import top_prefixes
from jspec.errors import InputError
from jspec.request import check_vocabulary

_EMPTY = -1
"""Tokens of a pool's place that holds no n-gram."""

# How often the root's n-grams, and the window, have the next token, and how often they go on to
# have the one behind; from greedy texts of the bundled model. Only mixtures read what follows.
_POOL, _POOL_NEXT = 0.7, 0.75
_WINDOW, _WINDOW_NEXT = 0.15, 0.4
_LEAST = 1e-30
"""Worth of the deepest nodes: not 0, which would leave them out of the tree."""
_MOST = 4096
"""Tokens of a tree."""
_LONGEST = 256
"""Levels of a tree: each costs steps that are compiled one by one."""


@struct.dataclass
class Jacobi:
    """The window of each row, and the pool. L levels of W columns; n-grams of L + 1 tokens."""

    window: Int[Array, "B L W"]
    """Level 0 is a guess at the text from the root on (column 0 is the root itself, and not read);
    level l has, in each column, the l-th token that the model saw behind level 0."""
    age: Int[Array, " B"]
    """Rounds so far, up to L - 1: from then on the model wrote all of the window but level 0."""
    pool: Int[Array, "R V G L"]
    """What followed each token: the tails of its last G distinct n-grams, the newest first."""


@dataclass(frozen=True)
class Lookahead:
    """Drafts the n-grams that begin with the last token, out of a pool that the model itself fills.

    Beside them the tree holds the window: a spine of guesses at the text to come, and from each
    node of the spine a branch of N - 2 tokens. A forward adds one token to each branch, which makes
    it an n-gram for the pool, and moves the window on by a token (section 3 of the paper).
    All in one tree, equal paths once: (N - 1)(W + G) tokens a forward, the root included.

    What differs from the authors' code (lade 0.0.2): the window begins full of tokens of the prompt
    instead of being filled in N - 2 rounds that verify nothing, and its n-grams are taken from the
    round on in which theirs would be; window nodes that turn out right are accepted too; end
    tokens in the window stay; the pool is of all rows and survives calls (`Result.drafter_state`).
    The window follows the model's likeliest tokens, in sampling as in greedy decoding.

    Memory: 4 * V * G * (N - 1) bytes for a pool.

    Args:
        vocab_size: V of the target.
        window: W, columns; the published default is 7, with
        ngram: N = 5 (LEVEL in the authors' code), and
        guesses: G = 7, most n-grams that are kept and drafted for a token.
        pool_from_prompt: fill the pool from the prompt too.
        per_row: a pool for each row of the batch, instead of one that all rows share.

    Raises:
        InputError: if an option is out of range.
    """

    vocab_size: int
    window: int = 7
    ngram: int = 5
    guesses: int = 7
    pool_from_prompt: bool = False
    per_row: bool = False

    def __post_init__(self):
        for name, least in (("window", 1), ("ngram", 2), ("guesses", 1), ("vocab_size", 1)):
            if (value := getattr(self, name)) < least:
                raise InputError(f"{name} is {value}; choose at least {least}")
        if (size := self.levels * (self.window + self.guesses)) > _MOST:
            raise InputError(
                f"window {self.window}, ngram {self.ngram} and guesses {self.guesses} make a tree "
                f"of (N - 1)(W + G) = {size} tokens; stay within {_MOST}"
            )
        if self.depth > _LONGEST:
            raise InputError(
                f"window {self.window} and ngram {self.ngram} make a tree of {self.depth} levels, "
                f"W + N - 3 or N - 1; stay within {_LONGEST}"
            )

    @property
    def levels(self) -> int:
        """L = N - 1: the window's levels, and the tokens of an n-gram behind its first."""
        return self.ngram - 1

    @property
    def depth(self) -> int:
        """Of the tree: the longer of the spine's last branch and an n-gram."""
        return max(self.window - 1 + self.levels - 1, self.levels)

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> Jacobi:
        del slots
        wanted = (batch if self.per_row else 1, self.vocab_size, self.guesses, self.levels)
        if earlier is None:
            pool = jnp.full(wanted, _EMPTY, jnp.int32)
        else:
            pool = getattr(earlier, "pool", None)
            shape, dtype = getattr(pool, "shape", None), getattr(pool, "dtype", None)
            if shape != wanted or dtype != np.int32:
                raise InputError(
                    f"drafter_state holds a pool of shape {shape} and dtype {dtype}, and this call "
                    f"needs {wanted} of int32; pass the state of a Lookahead drafter with the same "
                    "vocab_size, ngram, guesses and per_row"
                )
        return Jacobi(
            window=jnp.zeros((batch, self.levels, self.window), jnp.int32),
            age=jnp.zeros(batch, jnp.int32),
            pool=jnp.asarray(pool),
        )

    def prefill(
        self,
        params: PyTree,
        state: Jacobi,
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> Jacobi:
        """Random tokens of its prompt for each row, the same for the same prompt."""
        del params
        check_vocabulary("Lookahead", self.vocab_size, output.logits.shape[-1])
        window = jax.vmap(self.opening)(prompt, lengths)
        pool = state.pool
        if self.pool_from_prompt and prompt.shape[1] >= self.ngram:
            starts = jnp.arange(prompt.shape[1] - self.levels)
            grams = prompt[:, starts[:, None] + jnp.arange(self.ngram)]
            whole = starts + self.ngram <= lengths[:, None]
            pool = self.remember(pool, grams[..., 0], grams[..., 1:], whole)
        return replace(state, window=window, pool=pool)

    def opening(self, prompt: Int[Array, " T"], length: Int[Array, ""]) -> Int[Array, "L W"]:
        """A row's first window."""
        bits = jax.random.bits(jax.random.key(0), (self.levels, self.window), jnp.uint32)
        return prompt[(bits % length.astype(jnp.uint32)).astype(jnp.int32)].astype(jnp.int32)

    def draft(self, params: PyTree, state: Jacobi, frame: Frame) -> tuple[Tree, Jacobi]:
        del params
        owner = jnp.arange(len(frame.root)) % state.pool.shape[0]
        chains = state.pool[owner, frame.root]
        there = chains[..., 0] != _EMPTY
        newer = jnp.where(there, 0.5 ** jnp.arange(self.guesses), 0)
        shares = newer / jnp.maximum(newer.sum(-1, keepdims=True), 1)
        beyond = ((0, 0), (0, 0), (0, self.depth - self.levels))
        steps = np.arange(self.depth)
        window = np.maximum(_WINDOW / self.window * _WINDOW_NEXT**steps, _LEAST)
        window = np.where(self._inside, window, 0)
        window = jnp.broadcast_to(window, (len(frame.root), *window.shape))
        tokens = jnp.concatenate([self._paths(state.window), jnp.pad(chains, beyond)], axis=1)
        held = there[..., None] & (steps < self.levels)
        pool = jnp.maximum(shares[..., None] * (_POOL * _POOL_NEXT**steps), _LEAST)
        pool = jnp.where(held, pool, 0)
        weights = jnp.concatenate([window, pool], axis=1)
        nodes = self.levels * (self.window + self.guesses) - 1
        return top_prefixes(frame.root, tokens, weights.astype(jnp.float32), nodes), state

    def update(self, params: PyTree, state: Jacobi, feedback: Feedback) -> Jacobi:
        """The window moves on by one; columns that a mixture cut off get no new token."""
        del params
        window, tree = state.window, feedback.tree
        leaf, found = self._ends(window, tree)
        likeliest = feedback.output.logits.argmax(-1).astype(jnp.int32)
        newest = jnp.take_along_axis(likeliest, leaf, axis=1)
        # An n-gram: the token of the spine, its branch, and what the model says next.
        moved = jnp.concatenate([window[:, 1:], newest[:, None]], axis=1)
        first = window[:, 0].at[:, 0].set(tree.tokens[:, 0])
        written = (state.age >= self.levels - 1) & ~feedback.done
        pool = self.remember(state.pool, first, moved.swapaxes(1, 2), found & written[:, None])
        moved = moved.at[:, -1].set(jnp.where(found, newest, window[:, -1]))
        return Jacobi(
            window=jnp.where(feedback.done[:, None, None], window, moved),
            age=jnp.where(feedback.done, state.age, jnp.minimum(state.age + 1, self.levels - 1)),
            pool=pool,
        )

    def remember(
        self,
        pool: Int[Array, "R V G L"],
        first: Int[Array, "B M"],
        tails: Int[Array, "B M L"],
        live: Bool[Array, "B M"],
    ) -> Int[Array, "R V G L"]:
        """The pool after M n-grams of each row, row by row and one by one.

        One that is there becomes the newest again; else the oldest of its token is forgotten.
        """
        batch, count = first.shape
        owner = jnp.repeat(jnp.arange(batch) % pool.shape[0], count)
        first, tails, live = first.ravel(), tails.reshape(-1, self.levels), live.ravel()
        places = jnp.arange(self.guesses)

        def insert(gram, pool):
            old = pool[owner[gram], first[gram]]
            same = (old == tails[gram]).all(-1)
            gone = jnp.where(same.any(), same.argmax(), self.guesses - 1)
            moved = jnp.where((places <= gone)[:, None], jnp.roll(old, 1, axis=0), old)
            moved = moved.at[0].set(tails[gram])
            return pool.at[owner[gram], first[gram]].set(jnp.where(live[gram], moved, old))

        return jax.lax.fori_loop(0, batch * count, insert, pool)

    @cached_property
    def _inside(self) -> np.ndarray:
        """[W, D]: the tokens of each column's path, along the spine and then its branch."""
        columns = np.arange(self.window)[:, None]
        return np.arange(self.depth) < columns + self.levels - 1

    def _paths(self, window: Int[Array, "B L W"]) -> Int[Array, "B W D"]:
        """What stands between the root and the end of each column's branch."""
        columns, steps = np.arange(self.window)[:, None], np.arange(self.depth)
        spine = steps < columns
        level = np.where(spine, 0, np.minimum(steps - columns + 1, self.levels - 1))
        column = np.where(spine, np.minimum(steps + 1, self.window - 1), columns)
        return window[:, level, column]

    def _ends(
        self, window: Int[Array, "B L W"], tree: Tree
    ) -> tuple[Int[Array, "B W"], Bool[Array, "B W"]]:
        """The node where each column's branch ends, found by its path, and whether it is there.

        A mixture numbers nodes anew and leaves some out.
        """
        paths = self._paths(window)
        node = jnp.zeros(paths.shape[:2], jnp.int32)
        found = jnp.ones(node.shape, bool)
        for step in range(self.depth):
            child = (
                (tree.parents[:, None] == node[..., None])
                & (tree.tokens[:, None] == paths[..., step, None])
                & tree.valid[:, None]
            )
            inside = self._inside[:, step]
            node = jnp.where(inside, child.argmax(-1).astype(jnp.int32), node)
            found &= child.any(-1) | ~inside
        return node, found
