"""The parts of a round: frame, sanitize, score, commit.

frame    what a drafter may know
sanitize marks malformed nodes of the drafter's tree as absent
score    one forward pass of the target over the tree
verify   in `jspec.verify`: the drafter's verifier picks the path
commit   appends the accepted tokens and updates statistics; the model's `commit` writes its memory
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import sampling as samplings
from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.arrays.ragged import append
from jspec.protocols import CausalLM, Drafting, WidthPolicy
from jspec.round import forward, processing
from jspec.round.widths import check_rest, choose_width, cut, widths_of
from jspec.tree.sanitize import check_state, check_tree, sanitize
from jspec.types import (
    Feedback,
    Frame,
    Output,
    PolicyFeedback,
    PyTree,
    State,
    Stats,
    Status,
    Tree,
    Verdict,
)
from jspec.verify.choice import tokens as tokens_of
from jspec.verify.choice import verifier_of

__all__ = [
    "check_drafter_shapes",
    "commit",
    "frame",
    "no_rounds",
    "sanitize",
    "score",
]


def frame(state: State) -> Frame:
    """Returns the inputs of a draft.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> state = jspec.prefill(model, model.init(), [[1, 2, 3]], max_new_tokens=4)
        >>> jspec.round.frame(state).positions.tolist()
        [2]
    """
    return Frame(
        root=state.root,
        positions=state.positions,
        keys=state.controls.keys,
        sampling=state.controls.sampling,
        done=state.done,
        grammar=processing.grammar(state),
    )


def score(
    model: CausalLM,
    params: PyTree,
    tree: Tree,
    frame: Frame,
    memory: PyTree,
) -> Output:
    """Returns the target's forward pass over all nodes of a tree, each under its own ancestors.

    Args:
        model: the target.
        params: its weights.
        tree: a sanitized one.
        frame: of the round.
        memory: of the committed tokens; read only.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> state = jspec.prefill(model, model.init(), [[1, 2, 3]], max_new_tokens=4)
        >>> now, tree = jspec.round.frame(state), jspec.tree.root_only(state.root)
        >>> jspec.round.score(model, model.init(), tree, now, state.memory).logits.shape
        (1, 1, 23)
    """
    mask = trees.ancestors(tree)
    positions = frame.positions[:, None] + mask.sum(-1, dtype=jnp.int32) - 1
    return forward.apply(model, params, tree.tokens, positions, mask, memory)


def commit(
    state: State,
    tree: Tree,
    output: Output,
    verdict: Verdict,
    processed: Float[Array, "B N V"] | None = None,
) -> tuple[State, Feedback]:
    """Emits the accepted path, and returns the round's feedback for the drafter.

    Args:
        state: before the round. What model and drafter remember is passed on as it is: the first
            `Feedback.counts` nodes of the path are for the model's `commit`.
        tree: what was verified.
        output: the target's forward pass over it.
        verdict: what was accepted.
        processed: the logits that decided; None: the output's.

    Returns:
        The state after the round but for the memories, and what the drafter's `update` gets.
    """
    decided = output.logits if processed is None else processed
    emitted, counts, status = _truncate(state, tree, verdict, output.logits)
    feedback = Feedback(
        tree=tree,
        output=replace(output, tentative=None),
        verdict=verdict,
        emitted=emitted,
        counts=counts,
        positions=state.positions,
        done=status != Status.RUNNING,
        keys=state.controls.keys,
        sampling=state.controls.sampling,
        processed=None if decided is output.logits else decided,
    )
    last = jnp.take_along_axis(emitted, jnp.maximum(counts - 1, 0)[:, None], axis=1)[:, 0]
    stats = state.stats
    bins = jnp.arange(stats.acceptance_histogram.shape[1], dtype=jnp.int32)[None]
    verified = tree.valid.sum(-1, dtype=jnp.int32) - 1
    ran = counts > 0
    width = jnp.array(stats.widths) == tree.tokens.shape[1] - 1
    after = replace(
        state,
        positions=state.positions + counts,
        root=jnp.where(ran, last, state.root),
        tokens=append(state.tokens, state.lengths, emitted, counts),
        lengths=state.lengths + counts,
        status=status,
        stats=Stats(
            acceptance_histogram=stats.acceptance_histogram
            + (bins == counts[:, None] - 1).astype(jnp.int32),
            num_draft_tokens=stats.num_draft_tokens + jnp.where(state.done, 0, verified),
            num_drafts=stats.num_drafts + (ran & (verified > 0)).astype(jnp.int32),
            width_histogram=stats.width_histogram + (width[None] & ran[:, None]).astype(jnp.int32),
            widths=stats.widths,
        ),
    )
    after = processing.advance(state, after, output.logits, decided, verdict.path, emitted, counts)
    return after, feedback


def check_drafter_shapes(drafting: Drafting, state: State, output: Output) -> Tree:
    """Traces the drafter and policy of a round, and returns the tree's shapes.

    Args:
        drafting: of the call.
        state: before the first round.
        output: of the prefill: a round's has the same shapes, but for the number of tokens.

    Raises:
        InputError: if the drafter or the policy returns what no round can go on with, or its draws
            cannot be verified as it says.
    """
    drafter, params = drafting.drafter, drafting.drafter_params
    policy, policy_params = drafting.policy, drafting.policy_params
    name, now, policy_name = type(drafter).__name__, frame(state), type(policy).__name__
    should_draft = policy.should_draft(policy_params, state.policy_state)
    check_rest(policy, should_draft)
    if should_draft is False:
        return trees.root_only(state.root)
    drafted = jax.eval_shape(drafter.draft, params, state.drafter_state, now)
    if not isinstance(drafted, tuple) or len(drafted) != 2:
        raise InputError(
            f"{name}.draft returned a {type(drafted).__name__}; it must return (tree, aux)"
        )
    tree, aux = drafted
    check_tree(name, tree, len(state.root))
    widest = widths_of(policy, tree)[-1]

    def of_the_tree(leaf: Any, axis: int) -> Any:
        shape = (*leaf.shape[:axis], widest + 1, *leaf.shape[axis + 1 :])
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    scored = jax.tree.map(
        partial(of_the_tree, axis=1), Output(logits=output.logits, hidden=output.hidden)
    )
    fresh = replace(state, stats=no_rounds(policy, tree))

    def teach(tree: Tree, aux: PyTree, scored: Output) -> tuple[PyTree, PyTree]:
        tree, aux, scored = vary((tree, aux, scored), state)
        tree = sanitize(tree, state.root, scored.logits.shape[-1], now.grammar)
        tree, choice = choose_width(policy, policy_params, state.policy_state, tree, now)
        part = cut(tree, widest)
        processed = processing.process(state, part, scored.logits)
        verdict = verifier_of(drafter).verdict(part, processed, now)
        _, feedback = commit(fresh, part, scored, verdict, processed)
        policy_feedback = PolicyFeedback(tree, choice, feedback.emitted, feedback.counts)
        return (
            drafter.update(params, state.drafter_state, aux, feedback),
            policy.update(policy_params, state.policy_state, policy_feedback),
        )

    after, policy_after = jax.eval_shape(teach, tree, aux, scored)
    check_state(name, "update", after, "prefill", state.drafter_state)
    check_state(policy_name, "update", policy_after, "init", state.policy_state)
    return tree


def no_rounds(policy: WidthPolicy, tree: Tree) -> Stats:
    """Returns the statistics before the first round of such trees."""
    batch, widths = len(tree.tokens), widths_of(policy, tree)
    return Stats(
        acceptance_histogram=jnp.zeros((batch, tree.depth + 1), jnp.int32),
        num_draft_tokens=jnp.zeros(batch, jnp.int32),
        num_drafts=jnp.zeros(batch, jnp.int32),
        width_histogram=jnp.zeros((batch, len(widths)), jnp.int32),
        widths=widths,
    )


def _truncate(
    state: State, tree: Tree, verdict: Verdict, logits: Float[Array, "B N V"]
) -> tuple[Int[Array, "B P"], Int[Array, " B"], Int[Array, " B"]]:
    """Cuts the round's tokens at end tokens, limit and capacity: (emitted, counts, status)."""
    controls, steps = state.controls, jnp.arange(verdict.path.shape[1])[None]
    tokens = tokens_of(tree, verdict)
    offered = verdict.path_lengths - verdict.failed.astype(jnp.int32)
    budget = controls.limits - state.lengths
    room = state.capacity - state.positions
    counts = jnp.minimum(jnp.minimum(offered, budget), room)
    at_eos, at_stop = processing.ends(state, tokens)
    ends = (at_eos | at_stop) & (steps < counts[:, None])
    first, ended = ends.argmax(-1), ends.any(-1)
    counts = jnp.where(ended, first + 1, counts)
    by_eos = jnp.take_along_axis(at_eos, first[:, None], axis=1)[:, 0]
    counts = jnp.where(state.done, 0, counts).astype(jnp.int32)

    stopped = verdict.failed & (counts == offered)
    masked = _target_is_finite(state, logits, verdict)
    status = jnp.select(
        [
            state.done,
            ended & by_eos,
            ended,
            counts == budget,
            # Before NAN: logits beyond the model's last position may be NaN.
            counts == room,
            stopped & masked,
            stopped,
        ],
        [
            state.status,
            Status.EOS,
            Status.STOP,
            Status.LIMIT,
            Status.CAPACITY,
            Status.MASKED,
            Status.NAN,
        ],
        Status.RUNNING,
    )
    # A drafter may count in 64 bits where JAX does.
    emitted = jnp.where(steps < counts[:, None], tokens, 0).astype(jnp.int32)
    return emitted, counts, status.astype(jnp.int32)


def _target_is_finite(
    state: State, logits: Float[Array, "B N V"], verdict: Verdict
) -> Bool[Array, " B"]:
    """Returns True where the target itself gave a distribution at the end of the path."""
    if not state.processors:  # nothing else can have failed
        return jnp.zeros_like(state.done)
    last = jnp.take_along_axis(verdict.path, verdict.path_lengths[:, None] - 1, axis=1)
    node_logits = jnp.take_along_axis(logits, last[..., None], axis=1)[:, 0]
    return samplings.is_distribution(node_logits)
