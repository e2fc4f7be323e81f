"""Tracing: `decode` with everything that can be seen of each round, for `jspec trace`."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec import sampling as samplings
from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec._validate.row_arguments import of_ragged
from jspec._xla.backend import Jitted
from jspec._xla.explicit_axes import automatic
from jspec.arrays.top_k import top_k
from jspec.decoding import prefill
from jspec.drafters.autoregressive import Autoregressive
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import CausalLM, Drafter, Drafting, WidthPolicy
from jspec.round.phases import Offer, Round, absent
from jspec.round.widths import cut
from jspec.testing import origins
from jspec.types import NO_PARENT, Feedback, PyTree, Sampling, State, Status, Tree
from jspec.verify.choice import verifier_of

_CANDIDATES = 5


@struct.dataclass
class Outcome:
    """The target's part of a round; k candidates for the token after each verified node."""

    feedback: Feedback
    """Without the target's forward pass."""
    probs: Float[Array, "B N"]
    """The target's probability of each node's token after its parent; 1 at the root."""
    bonus_prob: Float[Array, " B"]
    candidates: Int[Array, "B N k"]
    """The likeliest tokens after each node. Under sampling one more: the token that the noise of
    the position makes the target's own draw."""
    candidate_probs: Float[Array, "B N k"]
    candidate_noise: Float[Array, "B N k"] | None
    """The position's Gumbel noise of each candidate; None if decoding is greedy."""


@dataclass(frozen=True)
class TracedWidths:
    """The widths that a round could have, and what spoke for the one that it had."""

    widths: tuple[int, ...]
    """Numbers of drafted nodes, rising."""
    index: int
    """The chosen one's index."""
    expected_tokens: Float[np.ndarray, " W"]
    seconds: Float[np.ndarray, " W"]


@dataclass(frozen=True)
class TracedRound:
    """One round: N nodes, the verified ones first. A parent comes before its children.

    Node 0 is the root, the last token of the round before. Siblings keep their order.
    """

    tokens: Int[np.ndarray, " N"]
    parents: Int[np.ndarray, " N"]
    num_verified: int
    """The first so many nodes were verified, the root among them; the others only offered."""
    estimates: Float[np.ndarray, " N"]
    """The drafter's estimate that each node is accepted, with all above it; NaN: it has none."""
    origins: Bool[np.ndarray, "N origins"]
    """Indices into `Trace.origins` of the offers of each node; the root has none."""
    probs: Float[np.ndarray, " N"]
    """The target's probability of each node's token after its parent; NaN where not verified."""
    path: Int[np.ndarray, " P"]
    """The accepted nodes from the root."""
    bonus: int
    """The token that the target itself drew after the path."""
    bonus_prob: float
    """The target's probability of it."""
    emitted: Int[np.ndarray, " _"]
    """The round's tokens: the path without the root, then the bonus, after cuts."""
    candidates: Int[np.ndarray, "verified k"]
    """The target's likeliest tokens after each verified node. Under sampling one more: the token
    that the noise makes the target's own draw there."""
    candidate_probs: Float[np.ndarray, "verified k"]
    candidate_noise: Float[np.ndarray, "verified k"] | None
    """Gumbel noise of each candidate at its position, the same whatever was drafted. Under the
    coupled rule the largest log p + noise decides. None: greedy."""
    choice: TracedWidths | None
    """None where the width is not chosen: all that is drafted is verified."""


@dataclass(frozen=True)
class Trace:
    """A generation round by round, on the host. Made by `jspec.trace`."""

    prompt: Int[np.ndarray, " T"]
    rounds: tuple[TracedRound, ...]
    status: Status
    """The reason why the generation ended."""
    origins: tuple[str, ...]
    """The drafters that propose tokens, by class name; members of merges one by one."""
    rule: str
    """The rule that decides about drafted tokens, such as `coupled`."""

    @property
    def tokens(self) -> Int[np.ndarray, " _"]:
        """The generated tokens: the arguments of `decode`."""
        return np.concatenate([np.zeros(0, np.int32), *(entry.emitted for entry in self.rounds)])

    def to_dict(self) -> dict[str, Any]:
        """Lists and numbers for the json module, rounded to 4 digits; None means absent."""
        return {
            "prompt": self.prompt.tolist(),
            "status": self.status.name.lower(),
            "origins": list(self.origins),
            "rule": self.rule,
            "rounds": [_round_dict(entry) for entry in self.rounds],
        }


def trace(
    model: CausalLM,
    params: PyTree,
    prompt: ArrayLike,
    prompt_lengths: ArrayLike | None = None,
    *,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    policy: WidthPolicy = FixedWidth(),
    policy_params: PyTree = None,
    **request,
) -> Trace:
    """Decodes one prompt and records every round: what each drafter offered, what was verified
    and accepted, and how likely the target held it.

    The rounds are made of the engine's own phases, and the tokens are those of `decode`.

    Args:
        model: the target; static.
        params: its weights.
        prompt: [1, T] token ids, padded on the right.
        prompt_lengths: [1] tokens of the prompt; None: all.
        drafter: proposes the trees; static.
        drafter_params: its weights, if it has any.
        policy: as in `decode`.
        policy_params: as in `decode`.
        request: all else as in `decode`.

    Returns:
        The rounds and how the generation ended, in NumPy arrays.

    Raises:
        InputError: as in `decode`, or for several prompts, before anything is compiled.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> seen = jspec.trace(
        ...     model, model.init(), [[1, 2, 1, 2, 1]], drafter=jspec.PromptLookup(),
        ...     max_new_tokens=6,
        ... )
        >>> seen.tokens.shape, seen.origins
        ((6,), ('PromptLookup',))
        >>> sum(len(one.emitted) for one in seen.rounds)
        6
    """
    prompt, prompt_lengths = of_ragged(prompt, prompt_lengths)
    if (rows := _num_rows(prompt)) > 1:
        raise InputError(f"prompt has {rows} rows and a trace is of one; pass [1, T] token ids")
    knows: dict[str, Any] = dict(drafter_params=drafter_params, policy_params=policy_params)
    state = prefill(
        model, params, prompt, prompt_lengths, drafter=drafter, policy=policy, **knows, **request
    )
    text = np.asarray(prompt)[0]
    text = text if prompt_lengths is None else text[: int(np.ravel(prompt_lengths)[0])]
    drafting = Drafting(drafter, drafter_params, policy, policy_params).complete(model, params)
    names, rounds = origins.names(drafter), []
    while not jax.device_get(state.done).all():
        drafts = policy.should_draft(drafting.policy_params, state.policy_state)
        is_fixed, drafts = isinstance(drafts, bool), bool(jax.device_get(drafts))
        offer, members = None, ()
        if drafts or not is_fixed:
            offer, members = _offer(model, params, state, drafting, drafts)
        widths, index = None, 0
        if policy.widths:
            nothing = np.full(len(policy.widths), np.nan, np.float32)
            widths = TracedWidths(policy.widths, 0, nothing, nothing)
        if drafts and offer is not None and offer.choice is not None and widths is not None:
            choice = jax.device_get(replace(offer.choice, values=None))
            index = int(choice.index)
            widths = replace(widths, index=index)
            if choice.seconds is not None and choice.expected_tokens is not None:
                reasons = {"expected_tokens": choice.expected_tokens, "seconds": choice.seconds}
                widths = replace(widths, **reasons)
        width = policy.widths[index] if policy.widths else None if drafts else 0
        state, outcome = _verify(model, params, state, drafting, offer, width, drafts)
        offered, outcome = jax.device_get(((members if drafts else ()), outcome))
        rounds.append(_round(offered, outcome, widths, len(names)))
    return Trace(
        prompt=text,
        rounds=tuple(rounds),
        status=Status(int(state.status[0])),
        origins=names,
        rule=str(verifier_of(drafter)),
    )


def _num_rows(prompt: Any) -> int:
    """Returns the rows of a prompt; 1 if it is not valid, which `prefill` refuses."""
    try:
        shape = np.shape(prompt)
    except ValueError:  # lists of different lengths
        return 1
    return shape[0] if len(shape) == 2 else 1


@partial(Jitted, static_argnames=("model", "drafts"))
@automatic
def _offer(
    model: CausalLM,
    params: PyTree,
    state: State,
    drafting: Drafting,
    drafts: bool,
    *,
    platform: str,
) -> tuple[Offer, tuple[Tree, ...]]:
    """Returns the offer of a round, and the trees that were drafted: all of it, and each member's;
    without `drafts`, of absent nodes.
    """
    phases = Round(model, params, drafting, platform)

    def make() -> tuple[Offer, tuple[Tree, ...]]:
        tree, aux = phases.draft(state)
        bare = _with_estimates(tree)
        members = origins.member_trees(drafting.drafter, bare, aux)
        return phases.choose(state, tree, aux), (bare, *map(_bare, members))

    return make() if drafts else absent(jax.eval_shape(make))


@partial(Jitted, static_argnames=("model", "width", "drafts"), donate_argnames=("state",))
@automatic
def _verify(
    model: CausalLM,
    params: PyTree,
    state: State,
    drafting: Drafting,
    offer: Offer | None,
    width: int | None,
    drafts: bool,
    *,
    platform: str,
) -> tuple[State, Outcome]:
    """Returns the state after a round of a width, None: of the whole tree, and what came of it."""
    phases, tree = Round(model, params, drafting, platform), trees.root_only(state.root)
    if offer is not None and width != 0:
        tree = offer.tree if width is None else cut(offer.tree, width)
    state, feedback = phases.verify(state, tree, offer, drafts)
    state = phases.update_policy(state, offer, feedback.emitted, feedback.counts)
    return state, _outcome(feedback, model.vocab_size)


def _outcome(feedback: Feedback, vocab_size: int) -> Outcome:
    tree, verdict = feedback.tree, feedback.verdict
    # Greedy decoding has no distribution of its own: the model's is shown.
    keys, sampling = feedback.keys, feedback.sampling
    logits = feedback.output.logits if feedback.processed is None else feedback.processed
    probs = samplings.node_probabilities(logits, Sampling() if sampling is None else sampling)
    best, candidates = top_k(probs, min(_CANDIDATES, vocab_size))
    noise = None
    if keys is not None and sampling is not None:
        steps = [
            samplings.gumbel(keys, feedback.positions + depth, vocab_size)
            for depth in range(tree.depth + 1)
        ]
        depths = jnp.minimum(trees.depths(tree), tree.depth)
        here = jnp.take_along_axis(jnp.stack(steps, axis=1), depths[..., None], axis=1)
        drawn = samplings.argmax(jnp.log(probs) + here)
        candidates = jnp.concatenate([candidates, drawn[..., None]], axis=-1)
        best = jnp.take_along_axis(probs, candidates, axis=-1)
        noise = jnp.take_along_axis(here, candidates, axis=-1)
    rows = jnp.arange(len(tree.tokens))[:, None]
    last = jnp.take_along_axis(verdict.path, verdict.path_lengths[:, None] - 1, axis=1)
    return Outcome(
        feedback=replace(feedback, tree=_bare(tree), output=None, processed=None),
        probs=probs[rows, jnp.maximum(tree.parents, 0), tree.tokens].at[:, 0].set(1.0),
        bonus_prob=probs[rows, last, verdict.bonus[:, None]][:, 0],
        candidates=candidates,
        candidate_probs=best,
        candidate_noise=noise,
    )


def _bare(tree: Tree) -> Tree:
    """Returns the nodes alone, and what they were estimated at."""
    return Tree(
        tokens=tree.tokens.astype(jnp.int32),
        parents=tree.parents.astype(jnp.int32),
        valid=tree.valid,
        depth=tree.depth,
        width=tree.width,
        value=tree.value,
    )


def _with_estimates(tree: Tree) -> Tree:
    """Returns the bare tree, with the probabilities of q if it has no estimates."""
    bare = _bare(tree)
    if tree.value is not None or tree.q is None:
        return bare
    row = jnp.arange(tree.tokens.shape[1])[None] if tree.q_row is None else tree.q_row
    above = jnp.maximum(tree.parents, 0)
    q_index = jnp.take_along_axis(jnp.broadcast_to(row, tree.tokens.shape), above, axis=1)
    batch = jnp.arange(tree.tokens.shape[0])[:, None]
    probs = tree.q[batch, q_index, tree.tokens].astype(jnp.float32).at[:, 0].set(1.0)
    return replace(bare, value=trees.path_probabilities(tree.parents, probs, tree.depth))


class _Nodes:
    """The union of trees at one root: nodes with equal paths are one."""

    def __init__(self, root: int):
        self.tokens, self.parents = [root], [NO_PARENT]
        self._children: dict[tuple[int, int], list[int]] = {}

    def add(self, tokens: Any, parents: Any, valid: Any) -> list[int]:
        """Adds a tree, the root first, and returns its nodes' numbers; -1 where none is valid."""
        numbers, seen = [0], Counter[tuple[int, int]]()
        for token, parent, is_valid in zip(tokens[1:], parents[1:], valid[1:], strict=True):
            above = numbers[parent] if is_valid else -1
            if above < 0:
                numbers.append(-1)
                continue
            key = (above, int(token))
            equal = self._children.setdefault(key, [])
            if seen[key] == len(equal):
                equal.append(len(self.tokens))
                self.tokens.append(int(token))
                self.parents.append(above)
            numbers.append(equal[seen[key]])
            seen[key] += 1
        return numbers


def _round(
    offered: tuple[Tree, ...], outcome: Outcome, choice: TracedWidths | None, num_origins: int
) -> TracedRound:
    """Returns the first row's round: its nodes joined by their paths, whoever numbered them.

    `offered` is what could have been verified, and then the tree of each of `origins.names`; empty
    if nothing was drafted.
    """
    feedback = outcome.feedback
    tree, verdict = feedback.tree, feedback.verdict
    nodes = _Nodes(int(tree.tokens[0, 0]))
    node_numbers = nodes.add(tree.tokens[0], tree.parents[0], tree.valid[0])
    verified = np.flatnonzero(tree.valid[0])
    num_verified = len(nodes.tokens)
    numbers = [nodes.add(part.tokens[0], part.parents[0], part.valid[0]) for part in offered]
    size = len(nodes.tokens)
    estimates, whose = np.full(size, np.nan, np.float32), np.zeros((size, num_origins), bool)
    # What a budget left out has its own drafter's estimate.
    for part, places in reversed(list(zip(offered, numbers, strict=True))):
        if part.value is not None:
            for value, place in zip(part.value[0], places, strict=True):
                if place >= 0:
                    estimates[place] = value
    for origin, places in enumerate(numbers[1:]):
        whose[[place for place in places if place > 0], origin] = True
    probs = np.full(size, np.nan, np.float32)
    probs[:num_verified] = outcome.probs[0, verified]
    noise, path = outcome.candidate_noise, verdict.path[0, : verdict.path_lengths[0]]
    return TracedRound(
        tokens=np.array(nodes.tokens, np.int32),
        parents=np.array(nodes.parents, np.int32),
        num_verified=num_verified,
        estimates=estimates,
        origins=whose,
        probs=probs,
        path=np.array([node_numbers[node] for node in path], np.int32),
        bonus=int(verdict.bonus[0]),
        bonus_prob=float(outcome.bonus_prob[0]),
        emitted=np.asarray(feedback.emitted)[0, : feedback.counts[0]],
        candidates=np.asarray(outcome.candidates)[0, verified],
        candidate_probs=np.asarray(outcome.candidate_probs)[0, verified],
        candidate_noise=None if noise is None else np.asarray(noise)[0, verified],
        choice=choice,
    )


def _round_dict(entry: TracedRound) -> dict[str, Any]:
    noise, choice = entry.candidate_noise, entry.choice
    bits = 1 << np.arange(entry.origins.shape[1], dtype=object)
    return {
        "tokens": entry.tokens.tolist(),
        "parents": entry.parents.tolist(),
        "num_verified": entry.num_verified,
        "estimates": _numbers(entry.estimates),
        # The bits of a number: bit i is set where origin i offered the node.
        "origins": [int(sum(bits[row])) for row in entry.origins],
        "probs": _numbers(entry.probs),
        "path": entry.path.tolist(),
        "bonus": entry.bonus,
        "bonus_prob": _number(entry.bonus_prob),
        "emitted": entry.emitted.tolist(),
        "candidates": entry.candidates.tolist(),
        "candidate_probs": [_numbers(row) for row in entry.candidate_probs],
        "candidate_noise": None if noise is None else [_numbers(row) for row in noise],
        "choice": None
        if choice is None
        else {
            "widths": list(choice.widths),
            "index": choice.index,
            "expected_tokens": _numbers(choice.expected_tokens),
            "seconds": _numbers(choice.seconds),
        },
    }


def _numbers(values: Any) -> list[float | None]:
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
