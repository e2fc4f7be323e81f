"""Token Recycling with a tree that follows the model's own certainty: jspec's own extension.

The published method (Luo et al. 2024) keeps ranks alone and drafts one fixed tree of them. Here the
cells of the adjacency matrix carry probabilities as well, and the budget goes to the paths of
largest product. An n-gram table of the target's own distributions may complement the matrix,
so that the first drafts know something, and know it after two tokens.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Flag, Integer, Number
from jspec._xla.manual_axes import cond, vary
from jspec.arrays.top_k import largest, top_k_and_logsumexp
from jspec.drafters.contrib import deciding_noise
from jspec.drafters.contrib.candidates import (
    NUM_KINDS,
    Candidates,
    likeliest,
    source,
    united,
)
from jspec.drafters.contrib.ngram_table import NGramTable
from jspec.drafters.growth.calibration import AcceptanceModel
from jspec.drafters.retrieval.adjacency_matrix import MatrixDrafter, read_lines, write_lines
from jspec.drafters.retrieval.token_pairs import NONE
from jspec.protocols import Verifier
from jspec.types import NO_PARENT, Feedback, Frame, PromptChunk, PyTree, Tree
from jspec.verify.schemes import COUPLED

_NUM_SOURCES = 2
"""The matrix and the n-gram table."""
_NUM_ORDERS = 2
"""The lines of a table after one token and those after two have corrections of their own."""


@struct.dataclass
class DynamicMatrixState:
    """The likely tokens after each token, and their probabilities; R is the batch, or 1."""

    tokens: Int[Array, "R V k"]
    probs: Float[Array, "R V k"]
    """The running means of probabilities, falling along k; 0 in lines never written."""
    acceptance: AcceptanceModel
    """The rates at which candidates were right, by source, rank and probability."""
    before: Int[Array, " B"]
    """The token before each row's last one; `NONE` where there is none."""


@dataclass(frozen=True)
class DynamicTokenRecycling(MatrixDrafter):
    """Drafts the likeliest paths of an adjacency matrix whose cells carry probabilities.

    jspec's own extension of Token Recycling (Luo et al. 2024, arXiv 2408.08696), in six points:

    - A cell holds a token and a running mean, over the visits of its line, of the probability that
      the target gave that token. A single visit says too much: the same token occurs in other texts
      too. A candidate stays as long as its mean is among the k largest.
    - How far a mean can be trusted is learnt from every emitted token, by rank and probability
      (`jspec.drafters.growth.calibration`).
    - A line is joined by an n-gram table's candidates after the last two tokens, if there is one:
      the params of this drafter, made of text that the target read
      (`jspec.drafters.contrib.ngrams`). What both offer is likelier, and how far each can be
      trusted is learnt.
    - Where tokens are drawn, the noise that decides them is known before the target's distribution
    is, and
      the candidates are those that it favours (`deciding_noise`).
    - The tree grows level by level. The best `beam` nodes of a level offer all their candidates;
      the best nodes of all levels, by the product of probabilities along their paths, are drafted.
    - Lines that were never written offer nothing.

    The matrix holds the model's own probabilities, whatever the temperature. It is filled by the
    same nodes as that of `TokenRecycling`, and survives calls like that one.

    Args:
        vocab_size: V of the target.
        num_speculative_tokens: drafted nodes, without the root. What a tree costs depends on the
            device: 80, as many as in the published tree, suit GPUs; 8 to 16 suit CPUs.
        max_depth: most levels.
        beam: nodes of a level that may get children.
        decay: weight of the old mean at each visit of a token; 0: the last visit alone counts, as
            published.
        k: candidates kept per token.
        update_on_prefill: fill the matrix from the prompt's logits too, all T x V at once.
        per_row: a matrix for each row of the batch; else all rows share one.

    Raises:
        InputError: if an option is of another type or out of range.

    Example:
        >>> import jspec
        >>> drafter = jspec.DynamicTokenRecycling(32_000, num_speculative_tokens=12)
        >>> drafter.init(1, 64, None).probs.shape
        (1, 32000, 8)
    """

    vocab_size: int
    num_speculative_tokens: Annotated[int, COUNT] = 80
    max_depth: Annotated[int, COUNT] = 12
    beam: Annotated[int, COUNT] = 16
    decay: Annotated[float, Number(0, 1, below_high=True)] = 0.5
    k: Annotated[int, Integer(1)] = 8
    update_on_prefill: Annotated[bool, Flag()] = False
    per_row: Annotated[bool, Flag()] = False

    def __post_init__(self):
        self.check_options()

    @property
    def verifier(self) -> Verifier:
        """The coupled rule: the candidates know the noise that decides, as no other rule allows."""
        return COUPLED.verifier

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> DynamicMatrixState:
        """Returns the empty matrix, or the earlier one; R is the batch with `per_row`, else 1."""
        del capacity
        if earlier is None:
            shape = self.shape(batch)
            return DynamicMatrixState(
                tokens=jnp.zeros(shape, jnp.int32),
                probs=jnp.zeros(shape, jnp.float32),
                acceptance=AcceptanceModel.init(_NUM_SOURCES),
                before=jnp.full(batch, NONE, jnp.int32),
            )
        self.check_state(earlier, batch)
        held = jax.tree.map(jnp.asarray, earlier)
        return replace(held, before=jnp.full(batch, NONE, jnp.int32))

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
        self, params: NGramTable | None, state: DynamicMatrixState, frame: Frame
    ) -> tuple[Tree, None]:
        """Returns the tree of the best nodes among all that the best nodes of each level offer."""
        batch = len(frame.root)
        self.check_state(state, batch)
        # The frontier: nodes that offer children, the tokens before them, values and numbers.
        tokens, before = frame.root[:, None], state.before[:, None]
        value = jnp.ones(tokens.shape, jnp.float32)
        ids = jnp.zeros_like(tokens)
        levels = [(tokens, jnp.full_like(tokens, NO_PARENT), value)]
        size = 1
        for depth in range(self.max_depth):
            lines = read_lines(state.tokens, tokens), read_lines(state.probs, tokens)
            found = self._candidates_after(params, state.acceptance, before, tokens, *lines)
            known = frame.keys, frame.sampling, frame.positions + depth, self.vocab_size
            candidates, probs = likeliest(deciding_noise.given(found, *known), self.k)
            value = (value[..., None] * probs).reshape(batch, -1)
            before, tokens = jnp.repeat(tokens, self.k, axis=1), candidates.reshape(value.shape)
            levels.append((tokens, jnp.repeat(ids, self.k, axis=1), value))
            value, best = largest(value, min(self.beam, value.shape[1]))
            tokens, before = (jnp.take_along_axis(each, best, axis=1) for each in (tokens, before))
            ids = size + best.astype(jnp.int32)
            size += levels[-1][0].shape[1]
        tokens, parents, value = (
            jnp.concatenate(part, axis=1) for part in zip(*levels, strict=True)
        )
        whole = Tree(
            tokens=tokens,
            parents=parents,
            valid=value > 0,
            depth=self.max_depth,
            width=self.k,
            value=value,
        )
        return trees.best(whole, self.num_speculative_tokens), None

    def prefill(
        self, params: NGramTable | None, state: DynamicMatrixState, chunk: PromptChunk
    ) -> DynamicMatrixState:
        """Returns the state after a chunk of the prompt; see `MatrixDrafter.prefill`."""
        _check_table(params, chunk.output.logits.shape[-1])
        return super().prefill(params, state, chunk)

    def update(
        self, params: NGramTable | None, state: DynamicMatrixState, aux: None, feedback: Feedback
    ) -> DynamicMatrixState:
        """Returns the state after a round: first the acceptance model learns, then the matrix."""
        scored, emitted = feedback.scored, feedback.emitted
        # Outside of the condition, which would copy the matrix, and as `recycle` reads: once.
        tokens = scored.tree.tokens
        lines = read_lines(state.tokens, tokens), read_lines(state.probs, tokens)

        def learnt() -> AcceptanceModel:
            # Before each emitted token there was a node of the accepted path.
            path = jnp.maximum(scored.verdict.path, 0)
            nodes, names, means = (_of_nodes(cells, path) for cells in (tokens, *lines))
            before = jnp.concatenate([state.before[:, None], nodes[:, :-1]], axis=1)
            found = self._candidates_after(params, state.acceptance, before, nodes, names, means)
            found = self._given_noise(found, feedback)
            known = jnp.arange(path.shape[1], dtype=jnp.int32)[None] < feedback.counts[:, None]
            return state.acceptance.learn(
                found.buckets,
                found.probs,
                known[..., None] & found.there,
                found.tokens == emitted[:, : path.shape[1], None],
            )

        skip, acceptance = feedback.skip_expensive_updates, state.acceptance
        acceptance = (
            learnt() if skip is None else cond(~skip, learnt, lambda: acceptance, acceptance)
        )
        return super().update(params, replace(state, acceptance=acceptance), aux, feedback)

    def _given_noise(self, found: Candidates, feedback: Feedback) -> Candidates:
        """Returns what was offered after the accepted nodes, given the noise of their places."""

        def at(found, step):
            known = feedback.keys, feedback.sampling, feedback.positions + step, self.vocab_size
            return deciding_noise.given(found, *known)

        steps = jnp.arange(found.tokens.shape[1], dtype=jnp.int32)
        return jax.vmap(at, (1, 0), 1)(found, steps)

    def _candidates_after(
        self,
        params: NGramTable | None,
        acceptance: AcceptanceModel,
        before: Int[Array, "B N"],
        tokens: Int[Array, "B N"],
        names: Int[Array, "B N k"],
        means: Float[Array, "B N k"],
    ) -> Candidates:
        """Returns the candidates after tokens, from their lines and the table."""
        sources = [source(names, means, _ranks(self.k, NUM_KINDS))]
        if params is not None:
            found, probs, order = params.after(before, tokens)
            ranks = NUM_KINDS // _NUM_ORDERS
            kind = ranks * jnp.maximum(order - 1, 0)[..., None] + _ranks(found.shape[-1], ranks)
            sources.append(source(found, probs, kind))
        return united(sources, acceptance)

    def recycle(
        self,
        state: DynamicMatrixState,
        before: Int[Array, "B N"] | None,
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> DynamicMatrixState:
        """Returns the lines' means moved by a visit; the k largest candidates stay."""
        del before
        old, mean = read_lines(state.tokens, tokens), read_lines(state.probs, tokens)
        like = old, mean, logits, live
        nothing = tuple(
            jnp.zeros((*tokens.shape, self.k), kind) for kind in (jnp.int32, jnp.float32)
        )
        # Passes over the vocabulary, so they wait until a line is written.
        names, kept = jax.lax.cond(
            live.any(),
            lambda: vary(self._visited(old, mean, logits), *like),
            lambda: vary(nothing, *like),
        )
        # All is read before anything is written: XLA copies a matrix that is read afterwards.
        state, names, kept = jax.lax.optimization_barrier((state, names, kept))
        return replace(
            state,
            tokens=write_lines(state.tokens, tokens, live, names),
            probs=write_lines(state.probs, tokens, live, kept),
        )

    def _visited(
        self,
        old: Int[Array, "B N k"],
        mean: Float[Array, "B N k"],
        logits: Float[Array, "B N V"],
    ) -> tuple[Int[Array, "B N k"], Float[Array, "B N k"]]:
        """Returns lines after a visit: candidates, and their means."""
        highest, new, total = top_k_and_logsumexp(logits.astype(jnp.float32), self.k)

        def probs(logits):
            return jnp.exp(logits.astype(jnp.float32) - total[..., None])

        known = mean > 0
        # A line's first visit counts whole.
        decay = jnp.where(known.any(-1, keepdims=True), self.decay, 0.0)
        moved = decay * mean + (1 - decay) * probs(jnp.take_along_axis(logits, old, axis=-1))
        moved = jnp.where(known, moved, 0.0)
        # A new candidate that is among the old ones has its mean there.
        twice = ((new[..., :, None] == old[..., None, :]) & known[..., None, :]).any(-1)
        fresh = jnp.where(twice, 0.0, (1 - decay) * probs(highest))
        both = jnp.concatenate([moved, fresh], axis=-1)
        kept, place = largest(jnp.where(jnp.isnan(both), 0.0, both), self.k)
        names = jnp.concatenate([old, new.astype(jnp.int32)], axis=-1)
        return jnp.take_along_axis(names, place, axis=-1), kept


def _of_nodes(cells: Shaped[Array, "B N *k"], nodes: Int[Array, "B P"]) -> Shaped[Array, "B P *k"]:
    """Returns what some nodes have."""
    return jax.vmap(lambda cells, nodes: cells[nodes])(cells, nodes)


def _ranks(k: int, most: int) -> Int[Array, "1 1 k"]:
    """Returns the ranks of a line's k candidates; high ranks share one number."""
    return jnp.minimum(jnp.arange(k, dtype=jnp.int32), most - 1)[None, None]


def _check_table(params: PyTree, vocab_size: int) -> None:
    """Raises InputError unless the params are None, or a table for the target's vocabulary."""
    if params is None:
        return
    if not isinstance(params, NGramTable):
        raise InputError(
            f"drafter_params of DynamicTokenRecycling is a {type(params).__name__}; pass None, or "
            "a table from jspec.drafters.contrib.ngrams.load or build"
        )
    if (size := params.line_of_token.shape[0]) != vocab_size:
        raise InputError(
            f"the n-gram table has a vocabulary of {size} and the model one of {vocab_size}; make "
            "one of this model's distributions"
        )
