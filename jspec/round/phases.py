"""One round: draft, choose, score, verify, commit, learn; and the loop around it."""

from collections.abc import Callable
from dataclasses import replace
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


def one_round(
    model: CausalLM,
    params: PyTree,
    state: State,
    drafting: Drafting,
    should_draft: bool | Bool[Array, ""],
    platform: str,
) -> State:
    """Returns the state after a round: draft, choose, score, verify, commit, learn."""
    drafter, policy, policy_params = drafting.drafter, drafting.policy, drafting.policy_params
    check_rest(policy, should_draft)

    def draft(state: State) -> Offer:
        tree, aux = drafter.draft(drafting.drafter_params, state.drafter_state, frame(state))
        check_same_trees(tree, policy, state)
        now = frame(state)
        tree = sanitize(tree, now.root, model.vocab_size, now.grammar)
        tree, choice = choose_width(policy, policy_params, state.policy_state, tree, now)
        return Offer(tree, aux, choice)

    def verify(
        tree: Tree, state: State, offer: Offer | None, should_draft: Any
    ) -> tuple[State, Feedback]:
        now = frame(state)
        output = score(model, params, tree, now, state.memory)
        processed = processing.process(state, tree, output.logits)
        verdict = verifier_of(drafter).verdict(tree, processed, now)
        # Tokens, lengths and statistics; the model's own commit writes its memory.
        state, feedback = commit(state, tree, output, verdict, processed)
        memory = model.commit(state.memory, output.tentative, verdict.path, feedback.counts)
        skip = policy.skip_expensive_updates(policy_params, state.policy_state)
        learner = drafter, drafting.drafter_params, state.drafter_state
        learnt = teach(*learner, offer, should_draft, feedback, skip, platform)
        return replace(state, memory=memory, drafter_state=learnt), feedback

    def after(state: State, offer: Offer | None, emitted: Array, counts: Array) -> State:
        tree, choice = (None, None) if offer is None else (offer.tree, offer.choice)
        policy_feedback = PolicyFeedback(tree, choice, emitted, counts)
        learnt = policy.update(policy_params, state.policy_state, policy_feedback)
        return replace(state, policy_state=learnt)

    if should_draft is False:
        tree = trees.root_only(state.root)
        state, feedback = verify(tree, state, None, False)
        return after(state, None, feedback.emitted, feedback.counts)
    if should_draft is True:
        offer = draft(state)
    else:
        shapes = jax.eval_shape(draft, state)
        offer = manual_axes.cond(
            should_draft,
            lambda: draft(state),
            # Nothing is computed: all nodes are absent.
            lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
            state,
        )
    if offer.choice is None:
        state, feedback = verify(offer.tree, state, offer, True)
        return after(state, offer, feedback.emitted, feedback.counts)

    def of_width(width: int) -> Callable[[Any, Any], Any]:
        def branch(carry: Any, operands: tuple[Offer, Any]) -> Any:
            (state, emitted, _), (offer, drafts) = carry, operands
            tree = trees.root_only(state.root)
            if width:
                tree = cut(offer.tree, width)
            with_draft = True if width or should_draft is True else drafts
            state, feedback = verify(tree, state, offer, with_draft)
            missing = emitted.shape[1] - feedback.emitted.shape[1]
            return state, jnp.pad(feedback.emitted, ((0, 0), (0, missing))), feedback.counts

        return branch

    nothing = jnp.zeros((len(state.root), offer.tree.depth + 1), jnp.int32)
    carry = state, nothing, jnp.zeros_like(state.lengths)
    branches = [of_width(width) for width in policy.widths]
    state, emitted, counts = in_place.switch(
        jnp.asarray(offer.choice.index), branches, carry, (offer, should_draft), platform
    )
    return after(state, offer, emitted, counts)


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
