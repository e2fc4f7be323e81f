"""Token Recycling with a tree that follows the model's own certainty: jspec's own extension.

The published method (Luo et al. 2024) keeps ranks alone and drafts one fixed tree of them. Here the
cells of the adjacency matrix carry probabilities as well, and the budget goes to the paths of
largest product.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec import mesh_axes
from jspec import tree as trees
from jspec.arguments import check_integer, check_number
from jspec.base import NO_PARENT, Feedback, Frame, PyTree, Tree
from jspec.drafters.growth.calibration import (
    BASE_LOG_ODDS,
    NUM_BUCKETS,
    AcceptanceModel,
    log_odds,
)
from jspec.drafters.retrieval.adjacency_matrix import MatrixDrafter, read_lines, write_lines
from jspec.errors import InputError
from jspec.sampling import top_k

_NUM_BINS = 8
"""The number of bins of log odds, each 1 wide, from -4 to 4."""
_NUM_RANKS = NUM_BUCKETS // _NUM_BINS
"""The number of ranks told apart; lower ones share the last."""


@struct.dataclass
class DynamicMatrixState:
    """The likely tokens after each token, and their probabilities; R is the batch, or 1."""

    tokens: Int[Array, "R V k"]
    probs: Float[Array, "R V k"]
    """The running means of probabilities, falling along k; 0 in lines never written."""
    acceptance: AcceptanceModel
    """The rates at which cells were right, by rank and probability."""


@dataclass(frozen=True)
class DynamicTokenRecycling(MatrixDrafter):
    """Drafts the likeliest paths of an adjacency matrix whose cells carry probabilities.

    jspec's own extension of Token Recycling (Luo et al. 2024, arXiv 2408.08696), in four points:

    - A cell holds a token and a running mean, over the visits of its line, of the probability that
      the target gave that token. A single visit says too much: the same token stands in other
      texts too. A candidate stays as long as its mean is among the k largest.
    - How far a mean can be trusted is learnt from every emitted token, by rank and probability
      (`jspec.drafters.growth.calibration`).
    - The tree grows level by level. The best `beam` nodes of a level offer all their candidates;
      the best nodes of all levels, by the product of probabilities along their paths, are drafted.
    - Lines that were never written draft nothing.

    Probabilities are the model's own, whatever the temperature. The matrix is filled by the same
    nodes as that of `TokenRecycling`, and survives calls like that one.

    Args:
        vocab_size: V of the target.
        num_speculative_tokens: drafted nodes, without the root. What a tree costs depends on the
            device: 80, as many as in the published tree, suit GPUs; 8 to 16 suit CPUs.
        max_depth: most levels.
        beam: nodes of a level that offer children.
        decay: share of a mean that a visit leaves; 0: the last visit alone counts, as published.
        k: candidates kept per token.
        update_on_prefill: fill the matrix from the prompt's logits too, all T x V of which are then
            computed at once.
        per_row: a matrix for each row of the batch, instead of one that all rows share.

    Raises:
        InputError: if an option is of another type or out of range.

    Example:
        >>> import jspec
        >>> drafter = jspec.DynamicTokenRecycling(32_000, num_speculative_tokens=12)
        >>> drafter.init(1, 64, None).probs.shape
        (1, 32000, 8)
    """

    vocab_size: int
    num_speculative_tokens: int = 80
    max_depth: int = 12
    beam: int = 16
    decay: float = 0.5
    k: int = 8
    update_on_prefill: bool = False
    per_row: bool = False

    def __post_init__(self):
        self.check_options()
        for name in ("num_speculative_tokens", "max_depth", "beam"):
            check_integer(name, getattr(self, name), 1, None)
        check_number("decay", self.decay, 0, 1, below_high=True)

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> DynamicMatrixState:
        """The empty matrix, or the earlier one; R is the batch with `per_row`, else 1."""
        del slots
        if earlier is None:
            shape = self.shape(batch)
            return DynamicMatrixState(
                tokens=jnp.zeros(shape, jnp.int32),
                probs=jnp.zeros(shape, jnp.float32),
                acceptance=AcceptanceModel.init(1),
            )
        self.check_state(earlier, batch)
        return jax.tree.map(jnp.asarray, earlier)

    def check_state(self, state: PyTree, batch: int) -> None:
        """Raises InputError unless the state is one of this drafter."""
        shape = self.shape(batch)
        if not isinstance(state, DynamicMatrixState):
            given = f"a {type(state).__name__}"
        else:
            given = f"a DynamicMatrixState of {state.tokens.shape} and {state.probs.shape}"
            kinds = state.tokens.dtype, state.probs.dtype
            if state.tokens.shape == state.probs.shape == shape and kinds == (np.int32, np.float32):
                return
        raise InputError(
            f"drafter_state is {given}, and this DynamicTokenRecycling needs a DynamicMatrixState "
            f"of {shape}, int32 and float32; pass the state of a drafter with the same vocab_size, "
            "k and per_row"
        )

    def draft(
        self, params: PyTree, state: DynamicMatrixState, frame: Frame
    ) -> tuple[Tree, DynamicMatrixState]:
        """The tree of the best nodes among all that the best nodes of each level offer."""
        del params
        batch = len(frame.root)
        self.check_state(state, batch)
        # The frontier: the nodes that offer children, and their values and numbers in the tree.
        tokens = frame.root[:, None]
        value = jnp.ones(tokens.shape, jnp.float32)
        ids = jnp.zeros_like(tokens)
        levels = [(tokens, jnp.full_like(tokens, NO_PARENT), value)]
        size = 1
        for _ in range(self.max_depth):
            candidates, _, probs = self._candidates(state, tokens)
            value = (value[..., None] * probs).reshape(batch, -1)
            tokens = candidates.reshape(value.shape)
            levels.append((tokens, jnp.repeat(ids, self.k, axis=1), value))
            value, best = mesh_axes.largest(value, min(self.beam, value.shape[1]))
            tokens = jnp.take_along_axis(tokens, best, axis=1)
            ids = size + best.astype(jnp.int32)
            size += levels[-1][0].shape[1]
        tokens, parents, value = (
            jnp.concatenate(part, axis=1) for part in zip(*levels, strict=True)
        )
        offered = Tree(
            tokens=tokens,
            parents=parents,
            valid=value > 0,
            depth=self.max_depth,
            width=self.k,
            value=value,
        )
        return trees.best(offered, self.num_speculative_tokens), state

    def update(
        self, params: PyTree, state: DynamicMatrixState, feedback: Feedback
    ) -> DynamicMatrixState:
        """The state after a round: first the acceptance model learns, then the matrix."""
        scored = feedback.scored
        # Before each emitted token stood a node of the accepted path.
        path = jnp.maximum(scored.verdict.path, 0)[..., None]
        candidates, bucket, probs = (
            jnp.take_along_axis(cells, path, axis=1)
            for cells in self._candidates(state, scored.tree.tokens)
        )
        emitted = feedback.emitted[:, : path.shape[1], None]
        known = jnp.arange(path.shape[1], dtype=jnp.int32)[None] < feedback.counts[:, None]
        acceptance = state.acceptance.learn(
            bucket[..., None], probs, known[..., None] & (bucket >= 0), candidates == emitted
        )
        return super().update(params, replace(state, acceptance=acceptance), feedback)

    def _candidates(
        self, state: DynamicMatrixState, tokens: Int[Array, "B N"]
    ) -> tuple[Int[Array, "B N k"], Int[Array, "B N k"], Float[Array, "B N k"]]:
        """The candidates after each token, their buckets and their calibrated probabilities."""
        held = read_lines(state.probs, tokens)
        found = log_odds(held, 1 - held.sum(-1, keepdims=True))
        rank = jnp.minimum(jnp.arange(self.k, dtype=jnp.int32), _NUM_RANKS - 1)
        place = jnp.clip(found + _NUM_BINS / 2, 0, _NUM_BINS - 1).astype(jnp.int32)
        bucket = jnp.where(held > 0, (rank * _NUM_BINS)[None, None] + place, -1)
        scores = state.acceptance.scores((found - BASE_LOG_ODDS)[..., None], bucket[..., None])
        weight = jnp.where(held > 0, jnp.exp(scores), 0.0)
        probs = weight / (1 + weight.sum(-1, keepdims=True))
        return read_lines(state.tokens, tokens), bucket, probs

    def recycle(
        self,
        state: DynamicMatrixState,
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> DynamicMatrixState:
        """The lines' means moved by a visit; the k largest of old and new candidates stay."""
        old, mean = read_lines(state.tokens, tokens), read_lines(state.probs, tokens)
        highest, new = top_k(logits, self.k)
        total = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1, keepdims=True)

        def probs(logits):
            return jnp.exp(logits.astype(jnp.float32) - total)

        known = mean > 0
        # A line's first visit counts whole.
        decay = jnp.where(known.any(-1, keepdims=True), self.decay, 0.0)
        moved = decay * mean + (1 - decay) * probs(jnp.take_along_axis(logits, old, axis=-1))
        moved = jnp.where(known, moved, 0.0)
        # A new candidate that is among the old ones has its mean there.
        twice = ((new[..., :, None] == old[..., None, :]) & known[..., None, :]).any(-1)
        fresh = jnp.where(twice, 0.0, (1 - decay) * probs(highest))
        both = jnp.concatenate([moved, fresh], axis=-1)
        kept, place = mesh_axes.largest(jnp.where(jnp.isnan(both), 0.0, both), self.k)
        names = jnp.concatenate([old, new.astype(jnp.int32)], axis=-1)
        names = jnp.take_along_axis(names, place, axis=-1)
        # All is read before anything is written: XLA copies a matrix that is read afterwards.
        state, names, kept = jax.lax.optimization_barrier((state, names, kept))
        return replace(
            state,
            tokens=write_lines(state.tokens, tokens, live, names),
            probs=write_lines(state.probs, tokens, live, kept),
        )
