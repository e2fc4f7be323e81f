"""Token Recycling with a tree that follows the model's own certainty.

Future work of the paper (Luo et al. 2024, section 7): cells of the adjacency matrix carry the
probability with which the model ranked them, and the budget goes to the paths of largest product.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec import tree as trees
from jspec.base import NO_PARENT, Feedback, Frame, Output, PyTree, Tree
from jspec.drafters.growth.calibration import KINDS, UNSEEN, AcceptanceModel, odds
from jspec.drafters.retrieval.token_recycling import write
from jspec.errors import InputError
from jspec.request import check_vocabulary
from jspec.sampling import top_k

_BINS = 8
"""Log odds told apart, one from the next."""


@struct.dataclass
class Matrix:
    """What looked likely after each token, and how likely; R is the batch, or 1."""

    tokens: Int[Array, "R V k"]
    chances: Float[Array, "R V k"]
    """Falling; 0 in lines that were never written."""
    opinions: AcceptanceModel
    """What such cells have been worth, by rank and probability."""


@dataclass(frozen=True)
class DynamicTokenRecycling:
    """Drafts the likeliest paths of an adjacency matrix whose cells carry probabilities.

    The matrix is filled by the same nodes as that of `TokenRecycling`. The probability that the
    model gave a token behind one text says too much of what follows behind another, so a cell
    holds a running mean over the visits, and a candidate stays as long as its mean is among the k
    largest. How far that mean can be trusted is learnt from all that is emitted, by rank and
    probability (`jspec.drafters.growth.calibration`).

    The tree grows level by level: the best `beam` nodes of each offer their cells, and of all that
    was offered the best are drafted. Lines that were never written are not drafted.

    Probabilities are the model's own, whatever the temperature.

    Args:
        vocab_size: V of the target.
        num_speculative_tokens: drafted, without the root. The cost of a tree depends on the device:
            the published 80 suit GPUs, 8 to 16 suit CPUs.
        max_depth: most levels.
        beam: nodes of a level that offer children.
        memory: share of a cell that a visit leaves; 0: the last visit alone counts, as published.
        k: candidates kept per token.
        update_on_prefill: fill the matrix from the prompt's logits too, all T x V of which are then
            computed at once.
        per_row: a matrix for each row of the batch, instead of one that all rows share.

    Raises:
        InputError: if an option is out of range.
    """

    vocab_size: int
    num_speculative_tokens: int = 80
    max_depth: int = 12
    beam: int = 16
    memory: float = 0.5
    k: int = 8
    update_on_prefill: bool = False
    per_row: bool = False

    def __post_init__(self):
        if not 1 <= self.k <= self.vocab_size:
            raise InputError(f"k is {self.k}; keep 1 .. {self.vocab_size} candidates per token")
        for name in ("num_speculative_tokens", "max_depth", "beam"):
            if (value := getattr(self, name)) < 1:
                raise InputError(f"{name} is {value}; choose at least 1")
        if not 0 <= self.memory < 1:
            raise InputError(f"memory is {self.memory}; choose 0 <= memory < 1")

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> Matrix:
        del slots
        wanted = (batch if self.per_row else 1, self.vocab_size, self.k)
        if earlier is None:
            return Matrix(
                jnp.zeros(wanted, jnp.int32),
                jnp.zeros(wanted, jnp.float32),
                AcceptanceModel.init(1),
            )
        parts = [getattr(earlier, name, None) for name in ("tokens", "chances")]
        shapes = [getattr(part, "shape", None) for part in parts]
        if not isinstance(earlier, Matrix) or shapes != [wanted, wanted]:
            shape = next((shape for shape in shapes if shape != wanted), wanted)
            raise InputError(
                f"drafter_state is a {type(earlier).__name__} with cells of shape {shape}, and "
                f"this call needs a Matrix of {wanted}; pass the state of a drafter with the same "
                "vocab_size, k and per_row"
            )
        return jax.tree.map(jnp.asarray, earlier)

    def prefill(
        self,
        params: PyTree,
        state: Matrix,
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> Matrix:
        del params
        check_vocabulary("DynamicTokenRecycling", self.vocab_size, output.logits.shape[-1])
        if not self.update_on_prefill:
            return state
        live = jnp.arange(prompt.shape[1]) < lengths[:, None]
        return self._recycle(state, prompt, output.logits, live)

    def draft(self, params: PyTree, state: Matrix, frame: Frame) -> tuple[Tree, Matrix]:
        del params
        tokens = frame.root[:, None]
        value = jnp.ones(tokens.shape, jnp.float32)
        ids, size = jnp.zeros_like(tokens), 1
        levels = [(tokens, jnp.full_like(tokens, NO_PARENT), value)]
        for _ in range(self.max_depth):
            cells, _, chances = self._cells(state, tokens)
            value = (value[..., None] * chances).reshape(len(tokens), -1)
            parents = jnp.repeat(ids, self.k, axis=1)
            tokens = cells.reshape(value.shape)
            levels.append((tokens, parents, value))
            ids = jnp.broadcast_to(size + jnp.arange(value.shape[1]), value.shape)
            size += value.shape[1]
            value, best = jax.lax.top_k(value, min(self.beam, value.shape[1]))
            tokens, ids = (jnp.take_along_axis(array, best, axis=1) for array in (tokens, ids))
        tokens, parents, value = (
            jnp.concatenate(part, axis=1) for part in zip(*levels, strict=True)
        )
        grown = Tree(
            tokens=tokens,
            parents=parents.astype(jnp.int32),
            valid=value > 0,
            depth=self.max_depth,
            width=self.k,
            value=value,
        )
        return trees.best(grown, self.num_speculative_tokens), state

    def update(self, params: PyTree, state: Matrix, feedback: Feedback) -> Matrix:
        """All nodes fill the matrix, accepted or not; not those of a row's last round.

        What was emitted tells what the cells before it were worth, drafted or not.
        """
        del params
        scored, emitted = feedback.scored, feedback.emitted
        tree = scored.tree
        # Before each emitted token stood the root, or the one emitted before it.
        before = jnp.concatenate([tree.tokens[:, :1], emitted[:, :-1]], axis=1)
        cells, kinds, chances = self._cells(state, before)
        told = (jnp.arange(emitted.shape[1]) < feedback.counts[:, None])[..., None]
        opinions = state.opinions.learn(
            kinds[..., None], chances, told & (kinds >= 0), cells == emitted[..., None]
        )
        live = tree.valid & ~feedback.done[:, None]
        state = self._recycle(state, tree.tokens, scored.output.logits, live)
        return replace(state, opinions=opinions)

    def _cells(
        self, state: Matrix, tokens: Int[Array, "B M"]
    ) -> tuple[Int[Array, "B M k"], Int[Array, "B M k"], Float[Array, "B M k"]]:
        """(candidates, their kinds, chance of each) after each token."""
        line = self._line(state, tokens)
        cells, held = (part.reshape(-1, self.k)[line] for part in (state.tokens, state.chances))
        odd = odds(held, 1 - held.sum(-1, keepdims=True))
        rank = jnp.minimum(jnp.arange(self.k), KINDS // _BINS - 1)
        spot = jnp.clip(odd + _BINS / 2, 0, _BINS - 1).astype(jnp.int32)
        kinds = jnp.where(held > 0, rank * _BINS + spot, -1)
        scores = state.opinions.scores((odd - UNSEEN)[..., None], kinds[..., None])
        weight = jnp.where(held > 0, jnp.exp(scores), 0.0)
        return cells, kinds, weight / (1 + weight.sum(-1, keepdims=True))

    def _line(self, state: Matrix, tokens: Int[Array, "B M"]) -> Int[Array, "B M"]:
        """Which of the R x V lines is each token's."""
        owner = jnp.arange(tokens.shape[0]) % state.tokens.shape[0]
        return owner[:, None] * self.vocab_size + tokens

    def _recycle(
        self,
        state: Matrix,
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> Matrix:
        line = self._line(state, tokens)
        held, before = (part.reshape(-1, self.k)[line] for part in (state.tokens, state.chances))
        highest, best = top_k(logits, self.k)
        scale = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1, keepdims=True)

        def probs(logits):
            return jnp.exp(logits.astype(jnp.float32) - scale)

        known = before > 0
        # A line's first visit counts whole.
        old = jnp.where(known.any(-1, keepdims=True), self.memory, 0.0)
        kept = old * before + (1 - old) * probs(jnp.take_along_axis(logits, held, axis=-1))
        kept = jnp.where(known, kept, 0.0)
        twice = ((best[..., :, None] == held[..., None, :]) & known[..., None, :]).any(-1)
        fresh = jnp.where(twice, 0.0, (1 - old) * probs(highest))
        both = jnp.concatenate([kept, fresh], axis=-1)
        chances, place = jax.lax.top_k(jnp.where(jnp.isnan(both), 0.0, both), self.k)
        names = jnp.concatenate([held, best.astype(jnp.int32)], axis=-1)
        names = jnp.take_along_axis(names, place, axis=-1)
        return replace(
            state,
            tokens=write(state.tokens, line, live, names),
            chances=write(state.chances, line, live, chances),
        )
