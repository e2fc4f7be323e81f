"""One round: draft, choose, score, verify, commit, learn; and the loop around it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jspec import _struct as struct
from jspec import tree as trees
from jspec._xla import in_place, manual_axes
from jspec.protocols import CausalLM, Drafter, Drafting
from jspec.round import commit, frame, processing, sanitize, score
from jspec.round.own_view import of_part, own_view
from jspec.round.widths import (
    check_rest,
    check_same_trees,
    choose_width,
    cut,
    node_indices,
)
from jspec.types import Feedback, PolicyFeedback, PyTree, State, Tree, WidthChoice
from jspec.verify.choice import verifier_of

TURN = "turn_of_rounds_"
"""The name of a kind's loop in a compiled program, before its number."""


@struct.dataclass
class Offer:
    """The choices of a round's width."""

    tree: Tree
    """All that was drafted, without malformed nodes."""
    aux: PyTree
    """The `aux` of `draft`."""
    choice: WidthChoice | None
    """None: the round verifies all of the tree."""


def run_rounds(
    going: Callable[[Any], Bool[Array, ""]],
    round_of: Callable[[Any, Any], Any],
    carry: Any,
    should_draft: Callable[[Any], "bool | Bool[Array, '']"],
    platform: str,
) -> Any:
    """Returns what is left after rounds, which are run while they go on.

    On a GPU, rounds with a draft and rounds without one have a loop each: where both share the body
    of one loop, each difference between them is a condition, for which the host waits. So a round
    without a draft is plain decoding, and waits for nothing but whether there is another one. On
    other devices conditions cost nothing, and the program is smaller with one body.
    """
    decision = should_draft(carry)
    if isinstance(decision, bool):
        return jax.lax.while_loop(going, partial(round_of, decision), carry)
    if platform != "gpu":
        return jax.lax.while_loop(going, lambda carry: round_of(should_draft(carry), carry), carry)

    def each_in_turn(carry: Any) -> Any:
        for drafts in (False, True):

            def on(carry: Any, drafts=drafts) -> Bool[Array, ""]:
                return going(carry) & (should_draft(carry) == drafts)

            with jax.named_scope(f"{TURN}{int(drafts)}"):
                carry = jax.lax.while_loop(on, partial(round_of, drafts), carry)
        return carry

    return jax.lax.while_loop(going, each_in_turn, carry)


@dataclass(frozen=True)
class Round:
    """The phases of a call's rounds."""

    model: CausalLM
    params: PyTree
    drafting: Drafting
    """With the policy's params."""
    platform: str

    def draft(self, state: State) -> tuple[Tree, PyTree]:
        """Returns the drafter's tree without malformed nodes, and its `aux`."""
        drafting, now = self.drafting, frame(state)
        memory = state.drafter_state
        tree, aux = drafting.drafter.draft(drafting.drafter_params, memory, now)
        check_same_trees(tree, drafting.policy, state)
        return sanitize(tree, now.root, self.model.vocab_size, now.grammar), aux

    def choose(self, state: State, tree: Tree, aux: PyTree) -> Offer:
        """Returns what may be verified, and the policy's choice."""
        policy, params = self.drafting.policy, self.drafting.policy_params
        tree, choice = choose_width(policy, params, state.policy_state, tree, frame(state))
        return Offer(tree, aux, choice)

    def verify(
        self, state: State, tree: Tree, offer: Offer | None, should_draft: Any
    ) -> tuple[State, Feedback]:
        """Scores and verifies a tree, commits its accepted path, and teaches the drafter."""
        drafting, now = self.drafting, frame(state)
        output = score(self.model, self.params, tree, now, state.memory)
        processed = processing.process(state, tree, output.logits)
        verdict = verifier_of(drafting.drafter).verdict(tree, processed, now)
        # Tokens, lengths and statistics; the model's own commit writes its memory.
        state, feedback = commit(state, tree, output, verdict, processed)
        memory = self.model.commit(state.memory, output.tentative, verdict.path, feedback.counts)
        skip = drafting.policy.skip_expensive_updates(drafting.policy_params, state.policy_state)
        learner = drafting.drafter, drafting.drafter_params, state.drafter_state
        learnt = teach(*learner, offer, should_draft, feedback, skip, self.platform)
        return replace(state, memory=memory, drafter_state=learnt), feedback

    def update_policy(
        self, state: State, offer: Offer | None, emitted: Array, counts: Array
    ) -> State:
        """Returns the state with what the policy has learnt of a round."""
        tree, choice = (None, None) if offer is None else (offer.tree, offer.choice)
        policy, params = self.drafting.policy, self.drafting.policy_params
        policy_feedback = PolicyFeedback(tree, choice, emitted, counts)
        learnt = policy.update(params, state.policy_state, policy_feedback)
        return replace(state, policy_state=learnt)


def absent(shapes: PyTree) -> PyTree:
    """Returns an offer for which nothing is computed: all of its nodes are absent."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def one_round(
    model: CausalLM,
    params: PyTree,
    state: State,
    drafting: Drafting,
    should_draft: bool | Bool[Array, ""],
    platform: str,
) -> State:
    """Returns the state after a round: draft, choose, score, verify, commit, learn."""
    policy, phases = drafting.policy, Round(model, params, drafting, platform)
    check_rest(policy, should_draft)

    def offers(state: State) -> Offer:
        return phases.choose(state, *phases.draft(state))

    if should_draft is False:
        state, feedback = phases.verify(state, trees.root_only(state.root), None, False)
        return phases.update_policy(state, None, feedback.emitted, feedback.counts)
    if should_draft is True:
        offer = offers(state)
    else:
        shapes = jax.eval_shape(offers, state)
        offer = manual_axes.cond(should_draft, lambda: offers(state), lambda: absent(shapes), state)
    if offer.choice is None:
        state, feedback = phases.verify(state, offer.tree, offer, True)
        return phases.update_policy(state, offer, feedback.emitted, feedback.counts)

    def of_width(width: int) -> Callable[[Any, Any], Any]:
        def branch(carry: Any, operands: tuple[Offer, Any]) -> Any:
            (state, emitted, _), (offer, drafts) = carry, operands
            tree = trees.root_only(state.root)
            if width:
                tree = cut(offer.tree, width)
            with_draft = True if width or should_draft is True else drafts
            state, feedback = phases.verify(state, tree, offer, with_draft)
            missing = emitted.shape[1] - feedback.emitted.shape[1]
            return state, jnp.pad(feedback.emitted, ((0, 0), (0, missing))), feedback.counts

        return branch

    nothing = jnp.zeros((len(state.root), offer.tree.depth + 1), jnp.int32)
    carry = state, nothing, jnp.zeros_like(state.lengths)
    branches = [of_width(width) for width in policy.widths]
    state, emitted, counts = in_place.switch(
        jnp.asarray(offer.choice.index), branches, carry, (offer, should_draft), platform
    )
    return phases.update_policy(state, offer, emitted, counts)


def teach(
    drafter: Drafter,
    params: PyTree,
    memory: PyTree,
    offer: Offer | None,
    should_draft: bool | Bool[Array, ""],
    feedback: Feedback,
    skip_expensive_updates: Bool[Array, ""] | None,
    platform: str,
) -> PyTree:
    """Returns the memory of a drafter after a round in which it may not have been asked."""
    resting = replace(feedback, skip_expensive_updates=skip_expensive_updates)
    if offer is None:
        return drafter.update(params, memory, None, resting)
    view, width = feedback, feedback.tree.tokens.shape[1] - 1
    if width < offer.tree.tokens.shape[1] - 1 and not offer.tree.nested:
        part = of_part(offer.tree, node_indices(offer.tree, width))
        view = own_view(part, feedback, others=False)
    if should_draft is True:
        return drafter.update(params, memory, offer.aux, view)
    if not drafter.tells_rest(offer.aux):  # one program serves both
        return drafter.update(params, memory, offer.aux, resting)

    def rest(memory: PyTree, operands: tuple[PyTree, Feedback, Feedback]) -> PyTree:
        return drafter.update(params, memory, None, operands[2])

    def learn(memory: PyTree, operands: tuple[PyTree, Feedback, Feedback]) -> PyTree:
        return drafter.update(params, memory, *operands[:2])

    index = jnp.asarray(should_draft, jnp.int32)
    operands = offer.aux, view, resting
    return in_place.switch(index, [rest, learn], memory, operands, platform)
