"""Merges several drafters' trees under one node budget, by learnt acceptance probabilities.

Every drafter drafts its whole tree. Equal paths are united, each node's probability is estimated by
`jspec.drafters.growth.calibration`, and those with the best probabilities are kept, whoever offered
them: a drafter that finds nothing leaves its nodes to the others.

What is cut off is judged all the same. The tokens that the target emits tell of every offered path
how far it would have been taken, so that a drafter which lost its nodes gets them back as soon as
it would have been right: no exploration is needed, and nothing is lost to it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT
from jspec._validate.options import check_fields
from jspec._xla.manual_axes import cond, vary
from jspec.drafters.ensemble.members import MemberDrafts, Members
from jspec.drafters.growth.calibration import (
    AcceptanceModel,
    among_siblings,
    features,
    outcomes,
)
from jspec.round.own_view import MemberDraft
from jspec.types import NO_PARENT, Feedback, Frame, PromptChunk, PyTree, Tree


@struct.dataclass
class DraftedNodes:
    """The M nodes that the drafters propose, the root first; of equal paths one node is valid."""

    tokens: Int[Array, "B M"]
    parents: Int[Array, "B M"]
    valid: Bool[Array, "B M"]
    depths: Int[Array, "B M"]
    log_odds: Float[Array, "B M drafters"]
    """The prior that each drafter gives a node, see `calibration.features`."""
    buckets: Int[Array, "B M drafters"]
    """The bucket whose correction applies to that prior; -1 where a drafter drafts no such node."""


@struct.dataclass
class WeighedDrafts(MemberDrafts):
    """The drafts of a round, with all their nodes and what was expected of them."""

    nodes: DraftedNodes
    probs: Float[Array, "B M"]
    """The estimated probability of each node given that its parent is accepted."""


@struct.dataclass
class BudgetedMergeState:
    """The memories of the members, and a model of how often each was right."""

    members: tuple[PyTree, ...]
    acceptance: AcceptanceModel


@dataclass(frozen=True)
class BudgetedMerge(Members):
    """Drafts the best proposals of its drafters within one budget; made by `merge`.

    Params are a tuple. The estimate starts from the drafters' own (`Tree.value`, or the order of
    siblings where there is none), is learnt by all rows together, and survives calls.
    """

    num_speculative_tokens: Annotated[int, COUNT]

    def __post_init__(self):
        super().__post_init__()
        check_fields(self)

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> BudgetedMergeState:
        fresh = AcceptanceModel.init(len(self.drafters))
        if earlier is not None and not (
            isinstance(earlier, BudgetedMergeState)
            and earlier.acceptance.bias.shape == fresh.bias.shape
        ):
            raise InputError(
                f"drafter_state is a {type(earlier).__name__} and a merge of "
                f"{len(self.drafters)} with a budget keeps a BudgetedMergeState; pass the "
                "state of a call with the same drafter"
            )
        return BudgetedMergeState(
            members=self.init_members(
                batch, capacity, None if earlier is None else earlier.members
            ),
            acceptance=fresh if earlier is None else earlier.acceptance,
        )

    def prefill(
        self, params: PyTree, state: BudgetedMergeState, chunk: PromptChunk
    ) -> BudgetedMergeState:
        members = self.prefill_members(params, state.members, chunk)
        return replace(state, members=members)

    def draft(
        self, params: PyTree, state: BudgetedMergeState, frame: Frame
    ) -> tuple[Tree, WeighedDrafts]:
        drafts, members = self.draft_members(params, state.members, frame)
        nodes, numbers = gathered(drafts)
        scores = state.acceptance.scores(nodes.log_odds, nodes.buckets)
        probs = among_siblings(nodes.parents, nodes.valid, scores)
        depth = max(draft.depth for draft in drafts)
        whole = Tree(
            tokens=nodes.tokens,
            parents=nodes.parents,
            valid=nodes.valid,
            depth=depth,
            width=sum(draft.width for draft in drafts),
            value=trees.path_probabilities(nodes.parents, probs, depth),
        )
        chosen = trees.best_nodes(whole, self.num_speculative_tokens)
        own = [
            MemberDraft(draft, _kept_number(chosen, number))
            for draft, number in zip(drafts, numbers, strict=True)
        ]
        return trees.kept(whole, chosen), WeighedDrafts(tuple(own), members, nodes, probs)

    def update(
        self,
        params: PyTree,
        state: BudgetedMergeState,
        aux: WeighedDrafts | None,
        feedback: Feedback,
    ) -> BudgetedMergeState:
        members = self.update_members(params, state.members, aux, feedback)
        nothing = state.acceptance.after_nothing()
        if aux is None:
            return BudgetedMergeState(members, nothing)
        nodes = aux.nodes

        def learnt() -> AcceptanceModel:
            tried, taken = outcomes(nodes, nodes.depths, feedback)
            return state.acceptance.learn(nodes.buckets, aux.probs, tried, taken)

        any_drafted = nodes.valid[:, 1:].any()
        known = cond(any_drafted, learnt, lambda: nothing, nothing)
        return BudgetedMergeState(members, known)


def _kept_number(chosen: Int[Array, "B n"], number: Int[Array, "B N"]) -> Int[Array, "B N"]:
    """Returns a member's node numbers among the chosen ones; n if not chosen."""
    place = trees.places(chosen, number)
    found = jnp.take_along_axis(chosen, place, axis=1, mode="fill", fill_value=-1)
    return jnp.where(found == number, place, chosen.shape[1])


def gathered(drafts: tuple[Tree, ...]) -> tuple[DraftedNodes, tuple[Int[Array, "B N"], ...]]:
    """Returns D trees joined at their root, equal paths once."""
    depths = [trees.depths(draft) for draft in drafts]
    # Drafter d's node j > 0 has the number starts[d] + j; all roots are node 0.
    starts, size = [], 1
    for draft in drafts:
        starts.append(size - 1)
        size += draft.tokens.shape[1] - 1

    def joined(arrays):
        return jnp.concatenate([arrays[0], *(array[:, 1:] for array in arrays[1:])], axis=1)

    tokens = joined([draft.tokens for draft in drafts])
    valid = joined([draft.valid for draft in drafts])
    parents = joined(
        [
            jnp.where(draft.parents > 0, draft.parents + start, draft.parents)
            for draft, start in zip(drafts, starts, strict=True)
        ]
    )
    depth = max(draft.depth for draft in drafts)
    first = _first(tokens, parents, valid, depth)
    nodes = jnp.arange(size)
    log_odds, buckets, numbers = [], [], []
    for draft, start, depth in zip(drafts, starts, depths, strict=True):
        own = jnp.concatenate([first[:, :1], first[:, start + 1 : start + depth.shape[1]]], axis=1)
        numbers.append(own.astype(jnp.int32))
        prior, bucket = features(draft, depth)
        # Which of its nodes each joint node is, the first of equal ones; its size where none.
        local = trees.first_at(jnp.where(draft.valid, own, size), size)
        log_odds.append(jnp.take_along_axis(prior, local, axis=1, mode="fill", fill_value=0.0))
        buckets.append(jnp.take_along_axis(bucket, local, axis=1, mode="fill", fill_value=-1))
    above = jnp.take_along_axis(first, jnp.maximum(parents, 0), axis=1)
    united = DraftedNodes(
        tokens=tokens,
        parents=jnp.where(nodes == 0, NO_PARENT, above).astype(jnp.int32),
        valid=valid & (first == nodes[None]),
        depths=joined(depths),
        log_odds=jnp.stack(log_odds, axis=-1),
        buckets=jnp.stack(buckets, axis=-1).astype(jnp.int32),
    )
    return united, tuple(numbers)


def _first(
    tokens: Int[Array, "B M"], parents: Int[Array, "B M"], valid: Bool[Array, "B M"], depth: int
) -> Int[Array, "B M"]:
    """Returns the first valid node with the path of each; itself for a node that is not valid.

    No node is deeper than `depth`, and what is above a valid node is valid.
    """
    # Whether a loop of unknown length goes on is for the host of a GPU to say, which waits for it.
    return jax.lax.platform_dependent(
        *(tokens, parents, valid), cuda=partial(_first_by_paths, depth=depth), default=_settled
    )


def _first_by_paths(
    tokens: Int[Array, "B M"], parents: Int[Array, "B M"], valid: Bool[Array, "B M"], depth: int
) -> Int[Array, "B M"]:
    nodes, paths = jnp.arange(tokens.shape[1]), trees.paths(parents, depth)
    above = jnp.take_along_axis(tokens[:, None], jnp.maximum(paths, 0), axis=2)
    words = jnp.where(paths > 0, above, -1)
    twin = (words[:, :, None] == words[:, None, :]).all(-1)
    twin &= valid[:, :, None] & valid[:, None, :] & ((nodes > 0)[None] & (nodes > 0)[:, None])[None]
    return (twin | (nodes[:, None] == nodes[None])[None]).argmax(-1)


def _settled(
    tokens: Int[Array, "B M"], parents: Int[Array, "B M"], valid: Bool[Array, "B M"]
) -> Int[Array, "B M"]:
    nodes = jnp.arange(tokens.shape[1])
    twin = (tokens[:, :, None] == tokens[:, None, :]) & valid[:, :, None] & valid[:, None, :]
    twin &= ((nodes > 0)[None] & (nodes > 0)[:, None])[None]
    twin |= (nodes[:, None] == nodes[None])[None]

    def settle(carry):
        first, _ = carry
        above = jnp.take_along_axis(first, jnp.maximum(parents, 0), axis=1)
        found = (twin & (above[:, :, None] == above[:, None, :])).argmax(-1)
        return found, (found != first).any()

    # Nodes of a level are settled once those above are: at most one pass a level, and one more.
    start = jnp.broadcast_to(nodes, tokens.shape)
    carry = vary((start, jnp.bool_(True)), tokens, parents, valid)
    first, _ = jax.lax.while_loop(lambda carry: carry[1], settle, carry)
    return first
