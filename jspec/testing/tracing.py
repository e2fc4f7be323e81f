"""Tracing: `decode` with everything that can be seen of each round, for `jspec trace`."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import of_ragged
from jspec.decoding import prefill, step
from jspec.drafters.autoregressive import Autoregressive
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import CausalLM, Drafter, WidthPolicy
from jspec.round import frame
from jspec.testing import origins
from jspec.testing.recorded import (
    Recorded,
    RecordedChoice,
    RecordedOutcome,
    RecordedPolicy,
    RecordedTrees,
)
from jspec.types import NO_PARENT, PyTree, State, Status, Tree
from jspec.verify.choice import verifier_of

_CANDIDATES = 5


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

    The rounds are the engine's own, and the tokens are those of `decode`.

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
    recorder = Recorded(drafter, model.vocab_size, _CANDIDATES)
    recorder = recorder.sized(drafter_params, state.drafter_state, frame(state))
    widths = policy.widths
    deciding = RecordedPolicy(policy, len(widths))
    state = replace(
        state,
        drafter_state=recorder.around(state.drafter_state),
        policy_state=deciding.around(state.policy_state),
    )
    names, rounds = origins.names(drafter), []
    while not jax.device_get(state.done).all():
        state = step(model, params, state, drafter=recorder, policy=deciding, **knows)
        (offered, scored), choice = jax.device_get(_last(state))
        traced_widths = None
        if widths:
            index = int(choice.index)
            traced_widths = TracedWidths(widths, index, choice.expected_tokens, choice.seconds)
        rounds.append(_round(offered, scored, traced_widths, len(names)))
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


def _last(state: State) -> tuple[tuple[RecordedTrees, RecordedOutcome], RecordedChoice]:
    return state.drafter_state.last, state.policy_state


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
    drafted: RecordedTrees,
    scored: RecordedOutcome,
    choice: TracedWidths | None,
    num_origins: int,
) -> TracedRound:
    """Returns the first row's round: its nodes joined by their paths, whoever numbered them."""
    nodes = _Nodes(int(scored.tokens[0, 0]))
    node_numbers = nodes.add(scored.tokens[0], scored.parents[0], scored.valid[0])
    verified = np.flatnonzero(scored.valid[0])
    num_verified = len(nodes.tokens)

    def joined(tree: Tree) -> list[int]:
        return nodes.add(tree.tokens[0], tree.parents[0], tree.valid[0])

    places = joined(drafted.tree)
    members = [joined(tree) for tree in drafted.members]
    size = len(nodes.tokens)
    estimates, whose = np.full(size, np.nan, np.float32), np.zeros((size, num_origins), bool)
    # What a budget left out has its own drafter's estimate.
    for tree, numbers in zip((*drafted.members, drafted.tree), (*members, places), strict=True):
        if tree.value is not None:
            for value, number in zip(tree.value[0], numbers, strict=True):
                if number >= 0:
                    estimates[number] = value
    for origin, numbers in enumerate(members):
        whose[[number for number in numbers if number > 0], origin] = True
    probs = np.full(size, np.nan, np.float32)
    probs[:num_verified] = scored.probs[0, verified]
    noise = scored.candidate_noise
    return TracedRound(
        tokens=np.array(nodes.tokens, np.int32),
        parents=np.array(nodes.parents, np.int32),
        num_verified=num_verified,
        estimates=estimates,
        origins=whose,
        probs=probs,
        path=np.array(
            [node_numbers[node] for node in scored.path[0, : scored.counts[0]]], np.int32
        ),
        bonus=int(scored.bonus[0]),
        bonus_prob=float(scored.bonus_prob[0]),
        emitted=np.asarray(scored.emitted)[0, : scored.num_emitted[0]],
        candidates=np.asarray(scored.candidates)[0, verified],
        candidate_probs=np.asarray(scored.candidate_probs)[0, verified],
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
