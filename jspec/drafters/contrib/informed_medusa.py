"""Medusa's heads with token info that nobody trained: what came after each token before.

K: heads. W: nodes of one level that are scored together.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Flag, Integer, Number
from jspec._validate.options import check_fields
from jspec.drafters.draft_head.eagle import joint_probability
from jspec.drafters.draft_head.head_drafter import top_k_draw
from jspec.drafters.draft_head.medusa import Medusa, ParallelHeads
from jspec.drafters.growth import best_first
from jspec.drafters.growth.scorer import LevelOutput
from jspec.drafters.retrieval.token_recycling import ACCEPTANCE, MatrixState, TokenRecycling
from jspec.protocols import Drafter, Verifier
from jspec.tree import chain
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree
from jspec.verify.schemes import COUPLED

_ELSEWHERE = 1e-4
"""The probability that a line gives each token that it does not hold."""


@struct.dataclass
class InformedState:
    """The target's state that the heads read, and the matrix."""

    hidden: Float[Array, "B E"]
    matrix: MatrixState


@dataclass(frozen=True)
class InformedMedusa(Drafter):
    """Drafts from Medusa's heads, multiplied by what an adjacency matrix holds after each token.

    Medusa's heads (Cai et al. 2024, arXiv:2401.10774) see none of the tokens that are drafted, not
    even the root. Lyanna (Chen et al. 2026, section 5.1) adds trained token info to such scores.
    Here it is Token Recycling's matrix (Luo et al. 2024, arXiv:2408.08696), which nobody trained:
    a node's scores are the head's plus `strength` times the logarithm of its token's line, or of
    the line of the token before and the token, if that was written. A line's probabilities go by
    rank, as they do in Token Recycling's trees. Levels below the last head's are drafted from lines
    alone. The tree grows level by level, by the products of probabilities along its paths. The
    combination is jspec's own.

    Args:
        head: see `jspec.models.heads.medusa.MedusaHeads`; static, as the target is.
            `drafter_params` of a call are its variables.
        num_speculative_tokens: drafted nodes, without the root.
        max_depth: most levels.
        beam: paths that get children in each level, and children of each.
        strength: the power of lines in greedy decoding; it falls to 0 at temperature 1.
        pairs: extra lines for pairs of tokens, 32 bytes each: a power of two; 0: none.
        per_row: a matrix for each row of the batch; else all rows share one.

    Raises:
        InputError: if the head is of another kind, or an option is of another type or out of range.

    Example:
        >>> import jspec
        >>> from jspec import models
        >>> head, params, target = models.heads.load("jspec-7m/medusa", models.load("jspec-7m"))
        >>> drafter = jspec.InformedMedusa(head, num_speculative_tokens=7, pairs=1024)
        >>> drafter.init(2, 64, None).matrix.lines.shape
        (1, 5120, 8)
    """

    head: ParallelHeads
    num_speculative_tokens: Annotated[int, COUNT] = 15
    max_depth: Annotated[int, COUNT] = 8
    beam: Annotated[int, COUNT] = 4
    strength: Annotated[float, Number(0, 100)] = 0.6
    pairs: Annotated[int, Integer(0)] = 1 << 17
    per_row: Annotated[bool, Flag()] = False

    def __post_init__(self):
        size = self._medusa.head.vocab_size  # or its error
        check_fields(self)
        best_first.check(self.num_speculative_tokens, self.max_depth, self.beam, size)
        _ = self._recycling  # or its error

    @property
    def _medusa(self) -> Medusa:
        return Medusa(self.head, chain(1))

    @property
    def _recycling(self) -> TokenRecycling:
        size = self.head.vocab_size
        k = min(len(ACCEPTANCE), size)
        return TokenRecycling(size, chain(1), k, per_row=self.per_row, pairs=self.pairs)

    @property
    def verifier(self) -> Verifier:
        """The coupled rule: children are chosen by the noise that decides the target's token."""
        return COUPLED.verifier

    @property
    def depth(self) -> int:
        return self.max_depth

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> InformedState:
        """Returns the empty memory; of an earlier call the matrix remains."""
        if earlier is not None and not isinstance(earlier, InformedState):
            raise InputError(
                f"drafter_state is a {type(earlier).__name__} and this drafter keeps an "
                "InformedState; pass the state of a call with the same drafter"
            )
        matrix = None if earlier is None else earlier.matrix
        return InformedState(
            self._medusa.init(batch, capacity, None), self._recycling.init(batch, capacity, matrix)
        )

    def prefill(self, params: PyTree, state: InformedState, chunk: PromptChunk) -> InformedState:
        return InformedState(
            self._medusa.prefill(params, state.hidden, chunk),
            self._recycling.prefill(None, state.matrix, chunk),
        )

    def draft(self, params: PyTree, state: InformedState, frame: Frame) -> tuple[Tree, None]:
        scored = self.head.apply(params, state.hidden[:, None])[:, 0]
        # To a head that scores few tokens all others are as unlikely as the last of these.
        shape = (*scored.shape[:2], self.head.vocab_size)
        least = jnp.broadcast_to(scored.min(-1, keepdims=True), shape)
        logits = least.at[..., self.head.scored(params)].set(scored)
        draft, _ = best_first.grow(
            InformedScorer(logits, self.strength, self._recycling, state.matrix, frame),
            top_k_draw,
            None,
            joint_probability,
            num_speculative_tokens=self.num_speculative_tokens,
            max_depth=self.max_depth,
            beam=self.beam,
        )
        valid = draft.tree.valid
        known = (frame.positions > 0)[:, None] | (jnp.arange(valid.shape[1]) == 0)[None]
        return replace(draft.tree, valid=valid & known), None

    def update(
        self, params: PyTree, state: InformedState, aux: None, feedback: Feedback
    ) -> InformedState:
        return InformedState(
            self._medusa.update(params, state.hidden, None, feedback),
            self._recycling.update(None, state.matrix, None, feedback),
        )


@dataclass(frozen=True)
class InformedScorer:
    """Heads' logits, raised at the tokens that the matrix holds after each node's token."""

    logits: Float[Array, "B K V"]
    strength: float
    recycling: TokenRecycling
    matrix: MatrixState
    frame: Frame

    def root(self) -> LevelOutput:
        """Scores the root's children."""
        root = self.frame.root
        before = root if self.matrix.before is None else self.matrix.before
        return self._informed(0, before[:, None], root[:, None])

    def below(
        self,
        level: Int[Array, ""] | int,
        kv_index: Int[Array, ""] | int,
        tokens: Int[Array, "B W"],
        inherited: Int[Array, "B W"],
        kv: PyTree,
    ) -> LevelOutput:
        """Scores W nodes of one depth, which inherited the tokens of their parents."""
        del kv_index, kv
        return self._informed(level, inherited, tokens)

    def _informed(
        self, level: Int[Array, ""] | int, before: Int[Array, "B W"], tokens: Int[Array, "B W"]
    ) -> LevelOutput:
        _, heads, size = self.logits.shape
        lines = self.recycling.candidates(self.matrix, before, tokens)
        rates = np.array(ACCEPTANCE[: lines.shape[-1]], np.float32)
        sampling = self.frame.sampling
        temperature = jnp.asarray(0.0 if sampling is None else sampling.temperature)
        # By rank lines are surer than a target that draws.
        strength = self.strength * jnp.maximum(1 - temperature, 0.0)
        with_head = strength.reshape(-1, 1, 1) * np.log(rates / _ELSEWHERE)[None, None]
        alone = np.log(rates * size / (1 - rates.sum()))  # the others share what is left
        raised = jnp.where(jnp.asarray(level) < heads, with_head, alone[None, None])
        logits = jnp.take(self.logits, jnp.asarray(level), axis=1, mode="fill", fill_value=0)
        logits = jnp.broadcast_to(logits[:, None], (*tokens.shape, size)).astype(jnp.float32)
        return LevelOutput(add_at(logits, lines, raised), inherited=tokens, kv=())


def add_at(
    logits: Float[Array, "B W V"], lines: Int[Array, "B W k"], raised: Float[Array, "#B 1 k"]
) -> Float[Array, "B W V"]:
    """Adds `raised` by rank to the logits of a line's tokens; a line of zeros was never written."""
    written = (lines != 0).any(-1, keepdims=True)
    add = jax.vmap(jax.vmap(lambda row, line, more: row.at[line].add(more)))
    return add(logits, lines, jnp.where(written, raised, 0.0))
