"""Base class of merges: calls the member drafters and maps feedback to each one's own tree."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec.drafters.growth.union import check_deterministic
from jspec.protocols import Drafter, Verifier
from jspec.round.widths import kept_nodes
from jspec.tree.sanitize import check_tree, sanitize
from jspec.types import Feedback, Frame, Output, PromptChunk, PyTree, Tree
from jspec.verify.schemes import COUPLED


@struct.dataclass
class MemberDraft:
    """The tree of one member, and the place of its nodes in the tree that was verified."""

    tree: Tree
    number: Int[Array, "B N"]
    """The number of each node in the joint tree; past its last node if the node was left out."""


def at_width(tree: Tree, width: int) -> MemberDraft:
    """The tree, and where its nodes stand in what is left of it at some width."""
    kept = kept_nodes(tree, width)
    nodes = jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)
    same = kept[:, None, :] == nodes[None, :, None]
    place = jnp.where(same.any(-1), same.argmax(-1), kept.shape[1])
    return MemberDraft(tree, place.astype(jnp.int32))


@struct.dataclass
class MemberDrafts:
    """What a merge needs of a round's draft in its update."""

    drafts: tuple[MemberDraft, ...]
    """Of each member."""
    members: tuple[PyTree, ...]
    """What the draft of each member gave beside its tree."""


@dataclass(frozen=True)
class Members:
    """Two or more drafters of deterministic proposals. Their params and their states are tuples.

    A member never learns that it has neighbours: it sees its own tree, in its own numbers, and
    everything else that was verified as `Feedback.scored`.

    Raises:
        InputError: if there are fewer than two, one is no drafter, or one draws by a rule of its
            own.
    """

    drafters: tuple[Drafter, ...]

    def __post_init__(self):
        if len(self.drafters) < 2:
            raise InputError(
                f"merge got {len(self.drafters)} drafter; pass two or more, or use the one as it is"
            )
        for drafter in self.drafters:
            if isinstance(drafter, type) or not isinstance(drafter, Drafter):
                raise InputError(
                    f"merge got {drafter!r:.80}; pass instances such as jspec.PromptLookup()"
                )
            if getattr(drafter, "verifier", None) not in (None, COUPLED.verifier):
                raise InputError(
                    f"merge got {drafter!r:.80}, whose draws have a verifier of their own; merge "
                    "drafters without one, or give this one scheme=jspec.schemes.COUPLED"
                )

    @property
    def verifier(self) -> Verifier | None:
        """The coupled rule if a member's children were chosen by the noise; else None."""
        own = (getattr(drafter, "verifier", None) for drafter in self.drafters)
        return next((verifier for verifier in own if verifier is not None), None)

    @property
    def context(self) -> int | None:
        """The longest row that all members can read, in tokens; None if there is no bound."""
        own = (getattr(drafter, "context", None) for drafter in self.drafters)
        return min((context for context in own if context is not None), default=None)

    @property
    def follows_text(self) -> bool:
        """Whether back-offs leave no gap in any member's memory."""
        return all(getattr(drafter, "follows_text", False) for drafter in self.drafters)

    def init_members(self, batch: int, capacity: int, earlier: PyTree | None) -> tuple[PyTree, ...]:
        """The first states of all members, by their `init`."""
        states = self._each(earlier, "drafter_state")
        return tuple(
            drafter.init(batch, capacity, state)
            for drafter, state in zip(self.drafters, states, strict=True)
        )

    def prefill_members(
        self, params: PyTree, states: tuple[PyTree, ...], chunk: PromptChunk
    ) -> tuple[PyTree, ...]:
        """The states of all members after a chunk of the prompt, by their `prefill`."""
        return tuple(
            drafter.prefill(weights, state, chunk)
            for drafter, weights, state in self._all(params, states)
        )

    def draft_members(
        self, params: PyTree, states: tuple[PyTree, ...], frame: Frame
    ) -> tuple[tuple[Tree, ...], tuple[PyTree, ...]]:
        """The sanitized trees of all members, by their `draft`, and what it gave beside them.

        Raises:
            InputError: if what a member returned is no tree, or was sampled.
        """
        drafted, kept = [], []
        for drafter, weights, state in self._all(params, states):
            tree, aux = drafter.draft(weights, state, frame)
            check_tree(type(drafter).__name__, tree, len(frame.root))
            check_deterministic(tree)
            sanitized = sanitize(tree, frame.root, grammar=frame.grammar)
            drafted.append(replace(sanitized, choice=None))
            kept.append(aux)
        return tuple(drafted), tuple(kept)

    def update_members(
        self,
        params: PyTree,
        states: tuple[PyTree, ...],
        aux: MemberDrafts | None,
        feedback: Feedback,
    ) -> tuple[PyTree, ...]:
        """The states of all members after a round, by `update` with feedback on their own trees."""
        told: list[tuple[PyTree, Feedback]] = [(None, feedback)] * len(self.drafters)
        if aux is not None:
            plain = feedback.tree.tokens.shape[1] == 1
            told = [
                (own, feedback if plain and not knows_backoff(own) else own_view(draft, feedback))
                for own, draft in zip(aux.members, aux.drafts, strict=True)
            ]
        return tuple(
            drafter.update(weights, state, *each)
            for (drafter, weights, state), each in zip(self._all(params, states), told, strict=True)
        )

    def _all(self, params: PyTree, states: tuple[PyTree, ...]):
        return zip(self.drafters, self._each(params, "drafter_params"), states, strict=True)

    def _each(self, given: PyTree, what: str) -> tuple[PyTree, ...]:
        """The given values, one for each member; None stands for none of them."""
        count = len(self.drafters)
        if given is None:
            return (None,) * count
        if not (isinstance(given, tuple) and len(given) == count):
            size = f" of {len(given)}" if isinstance(given, tuple) else ""
            raise InputError(
                f"{what} is a {type(given).__name__}{size} and merge keeps a tuple of {count}, one "
                "for each of its drafters; pass one for each, or the state of a call with the same "
                "drafter"
            )
        return given


def knows_backoff(aux: PyTree) -> bool:
    """Whether zeros in the place of what a draft gave are something else than a back-off.

    Drafts without a node are none, and a drafter whose `aux` holds no arrays cannot tell.
    """
    if isinstance(aux, MemberDrafts):
        return any(map(knows_backoff, aux.members))
    return bool(jax.tree.leaves(aux))


def own_view(draft: MemberDraft, feedback: Feedback, others: bool = True) -> Feedback:
    """The round as one member sees it: its own tree, in the numbers that it gave its nodes.

    What the member does not read of it is never computed.

    Args:
        draft: the member's tree, and where its nodes stand in the joint one.
        feedback: of the tree that was verified.
        others: whether other drafters have nodes in that tree.
    """
    size = feedback.tree.tokens.shape[1]
    at = jnp.minimum(draft.number, size - 1)
    verified = jnp.take_along_axis(feedback.tree.valid, at, axis=1) & (draft.number < size)
    there = draft.tree.valid & verified

    def nodes(array, axis):
        index = at.reshape(at.shape[0], *(1,) * (axis - 1), -1, *(1,) * (array.ndim - axis - 1))
        return jnp.take_along_axis(array, index, axis=axis)

    output = feedback.output
    # The number of each joint node in the member's tree; -1 where it has none.
    own = trees.first_at(jnp.where(there, draft.number, size), size)
    own = jnp.where(own < draft.number.shape[1], own, -1)
    path = feedback.verdict.path
    known = jnp.take_along_axis(own, jnp.maximum(path, 0), axis=1)
    lanes = jnp.arange(path.shape[1])[None]
    path = jnp.where(lanes < feedback.verdict.counts[:, None], jnp.where(path < 0, -1, known), 0)
    # A tree that lost its deepest nodes has shorter paths than its drafter's.
    missing = ((0, 0), (0, max(draft.tree.depth + 1 - path.shape[1], 0)))
    return replace(
        feedback,
        tree=replace(draft.tree, valid=there),
        output=Output(
            logits=nodes(output.logits, 1),
            hidden=None if output.hidden is None else nodes(output.hidden, 1),
        ),
        verdict=replace(feedback.verdict, path=jnp.pad(path, missing)),
        emitted=jnp.pad(feedback.emitted, missing),
        merged=feedback.scored,
        processed=None,  # of the joint tree
        others=others or feedback.others,
    )
