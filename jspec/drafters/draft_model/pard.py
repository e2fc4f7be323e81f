"""PARD (An et al. 2025): a draft model that proposes all of its tokens in one forward.

K: the levels of the tree, and so the tokens that a forward pass predicts.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import TOKEN
from jspec.arrays.ragged import sequence
from jspec.drafters.draft_model.model_drafter import ModelDrafter
from jspec.drafters.draft_model.padded_vocabulary import PaddedVocabulary
from jspec.drafters.growth import template_trees as templates
from jspec.drafters.growth.scorer import TokenScorer
from jspec.tree import Template, chain
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree
from jspec.verify.schemes import RECURSIVE

_CHAIN = chain(8)


@struct.dataclass
class PARDState:
    """A parallel draft model's memory, and the tokens to read with the next draft."""

    cache: PyTree
    """The model's own memory."""
    lengths: Int[Array, " B"]
    """The number of tokens of each row that it holds."""
    unread: Int[Array, "B K"]
    """The last `counts` are the tokens between those and the root."""
    counts: Int[Array, " B"]


@dataclass(frozen=True)
class ParallelScorer(TokenScorer):
    """The predictions of one forward pass: they depend on the text and a node's level alone."""

    logits: Float[Array, "B K V"]
    frame: Frame

    def after(
        self, level: Int[Array, ""] | int, tokens: Int[Array, "B W"]
    ) -> Float[Array, "B W V"]:
        """Returns the prediction of depth `level` + 1, for each of W tokens at depth `level`."""
        logits = jax.lax.dynamic_index_in_dim(self.logits, level, axis=1)
        return jnp.broadcast_to(logits, (*tokens.shape, logits.shape[-1]))


@dataclass(frozen=True)
class PARD(ModelDrafter):
    """PARD's parallel draft model; verified by the coupled scheme unless asked.

    A small language model was trained on so that K - 1 mask tokens behind a text make it predict
    the next K tokens at once (An et al. 2025, section 3). A round is one forward pass of it: over
    the tokens that the last round emitted, the root, and the masks. Keys and values of text stay in
    its memory, and masks' are dropped. So the tokens of a path are drafted without one another:
    each is the likeliest of its position, whatever comes before it.

    The paper drafts a chain and verifies by rejection sampling, which `PARD.published(model, ..)`
    does. The default is jspec's coupled scheme, whose tokens are those of plain decoding with the
    same key. In a tree the children of all nodes of a level are of one distribution, as Medusa's.

    Any model can be asked so, and the tokens are exact whatever it says; only one that was trained
    for it is worth it. jspec trains none.

    Source: arXiv:2504.18583; https://github.com/AMD-AGI/PARD.

    Args:
        model: the draft model.
        mask_token_id: the token for an unknown one, `pard_token` in the model's config.json.
        template: the tree's shape; K is its depth. The authors' models draft chains of 8 to 12.
        scheme: how children are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: the target's.

    Raises:
        InputError: if the mask token is not in the model's vocabulary, or the template is empty or
            gives a node more children than there are tokens.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> jspec.PARD(draft, mask_token_id=4095).depth
        8
        >>> wide = jspec.PARD(draft, 4095, jspec.tree.branching([3, 2, 1]))
        >>> jspec.PARD.published(draft, mask_token_id=4095).scheme == jspec.schemes.RECURSIVE
        True
    """

    mask_token_id: Annotated[int, TOKEN]
    template: Template = _CHAIN

    paper_settings: ClassVar = {"scheme": RECURSIVE}

    def __post_init__(self):
        super().__post_init__()
        templates.check_template(self.template, self.model.vocab_size)
        model: Any = self.model.model if isinstance(self.model, PaddedVocabulary) else self.model
        max_token = model.vocab_size - 1
        check_integer(
            "mask_token_id", self.mask_token_id, 0, max_token, "a token of the draft model"
        )

    @property
    def depth(self) -> int:
        """The number K of tokens that a forward pass predicts."""
        return self.template.depth

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> PARDState:
        """Returns the empty memory; nothing of an earlier call is kept."""
        if earlier is not None and not isinstance(earlier, PARDState):
            raise InputError(
                f"drafter_state is a {type(earlier).__name__} and PARD keeps a PARDState; pass the "
                "state of a call with the same drafter"
            )
        none = jnp.zeros(batch, jnp.int32)
        unread = jnp.zeros((batch, self.depth), jnp.int32)
        return PARDState(self.empty_cache(batch, capacity), none, unread, none)

    def prefill(self, params: PyTree, state: PARDState, chunk: PromptChunk) -> PARDState:
        self.check_models(params, chunk.output)
        return self._read(params, state, chunk.read, chunk.positions, chunk.read_lengths)

    def draft(self, params: PyTree, state: PARDState, frame: Frame) -> tuple[Tree, PyTree]:
        logits, kv = self.predict(params, state, frame)
        scorer = ParallelScorer(logits, frame)
        draft = templates.fill(self.template, scorer, self.scheme.draw, self.sampling)
        return draft.tree, kv

    def predict(
        self, params: PyTree, state: PARDState, frame: Frame
    ) -> tuple[Float[Array, "B K V"], PyTree]:
        """Scores of the K tokens after the root, and what is tentative of the forward."""
        masks = jnp.full((len(frame.root), self.depth - 1), self.mask_token_id, jnp.int32)
        tokens = jnp.concatenate([state.unread, frame.root[:, None], masks], axis=1)
        offsets, causal = sequence(*tokens.shape)
        positions = frame.positions[:, None] - self.depth + offsets
        valid = offsets >= (self.depth - state.counts)[:, None]
        output = self.model.apply(
            params, tokens, jnp.maximum(positions, 0), _among(valid, causal), state.cache
        )
        return output.logits[:, self.depth :], output.tentative

    def update(
        self, params: PyTree, state: PARDState, aux: PyTree | None, feedback: Feedback
    ) -> PARDState:
        counts, emitted, root = feedback.counts, feedback.emitted, feedback.tree.tokens[:, :1]
        if aux is None:
            text = jnp.concatenate([root, emitted], axis=1)[:, :-1]
            return self._read(params, state, text, feedback.positions, counts)
        # The unread tokens and the root, which are adjacent among the scored tokens.
        wrote, depth = counts > 0, self.depth
        first = (depth - state.counts)[:, None]
        path = jnp.minimum(first + jnp.arange(depth + 1, dtype=jnp.int32)[None], depth)
        read = jnp.where(wrote, state.counts + 1, 0)
        cache = self.model.commit(state.cache, aux, path, read)
        new_state = PARDState(cache, state.lengths + read, state.unread, jnp.zeros_like(read))
        # Of a longer path, which others drafted, more was emitted than `unread` has places for.
        ahead = jnp.maximum(counts - 1 - depth, 0)
        if (extra := emitted.shape[1] - 1 - depth) > 0:
            new_state = self._read(params, new_state, emitted[:, :extra], new_state.lengths, ahead)
        num_unread = jnp.maximum(counts - 1 - ahead, 0)
        place = (ahead + num_unread - depth)[:, None] + jnp.arange(depth, dtype=jnp.int32)[None]
        unread = jnp.take_along_axis(emitted, jnp.maximum(place, 0), axis=1)
        return PARDState(
            new_state.cache,
            new_state.lengths,
            jnp.where(wrote[:, None], unread, state.unread),
            jnp.where(wrote, num_unread, state.counts),
        )

    def _read(
        self,
        params: PyTree,
        state: PARDState,
        tokens: Int[Array, "B C"],
        first: Int[Array, " B"],
        counts: Int[Array, " B"],
    ) -> PARDState:
        """Returns the state with all that is unread before a text, and the text."""
        lengths = jnp.minimum(state.lengths, first)
        before = jnp.clip(first - lengths, 0, state.counts)
        # Of each unread token, which one it is.
        place = jnp.arange(self.depth, dtype=jnp.int32)[None] - (self.depth - state.counts)[:, None]
        text, _ = sequence(*tokens.shape)
        valid = [(place >= 0) & (place < before[:, None]), text < counts[:, None]]
        positions = [lengths[:, None] + place, first[:, None] + text]
        offsets, causal = sequence(len(tokens), self.depth + tokens.shape[1])
        earlier = self.model.until(state.cache, first)  # pyright: ignore[reportAttributeAccessIssue]
        output = self.model.apply(
            params,
            jnp.concatenate([state.unread, tokens], axis=1),
            jnp.maximum(jnp.concatenate(positions, axis=1), 0),
            _among(jnp.concatenate(valid, axis=1), causal),
            earlier,
        )
        self.check_weights(output)
        of_text = self.depth + offsets - before[:, None]
        path = jnp.where(
            offsets < before[:, None], self.depth - state.counts[:, None] + offsets, of_text
        )
        path = jnp.clip(path, 0, offsets.shape[1] - 1)
        read = before + counts
        cache = self.model.commit(earlier, output.tentative, path, read)
        return PARDState(cache, lengths + read, state.unread, jnp.zeros_like(counts))


def _among(valid: Bool[Array, "B N"], causal: Bool[Array, "B N N"]) -> Bool[Array, "B N N"]:
    """Returns the mask of text of which some is absent: nothing attends to that but itself."""
    return (causal & valid[:, None]) | jnp.eye(valid.shape[1], dtype=bool)[None]
