"""Measures the cost curve: whole rounds at every width, timed where they will run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.decoding import decode_rounds, prefill
from jspec.policies.adaptive import Adaptive
from jspec.policies.cost_curve import CostCurve
from jspec.protocols import CausalLM, Drafter, Drafting
from jspec.types import PyTree, State

_ROUNDS = 4
"""The fewest rounds that are timed together."""
_MOST_ROUNDS = 32
_ENOUGH = 0.05
"""Seconds for which the start of a call no longer counts."""
_OUT_OF_REACH = 1e6
"""Seconds of a width that is not to be chosen."""
_AGAIN = 3
"""The most repeats, as a multiple of the number asked for."""
_FEWEST, _PATIENCE = 2, 8.0
"""The fewest repeats, and the seconds after which no more of them begin: where a call takes
seconds, other work changes the least of a few by little."""
_OUT_OF_ORDER = 0.05
"""The share by which less may seem to take longer than more before all is timed again."""
_ENDLESS = 2**30
"""Rounds of a back-off that outlasts every measurement."""


def measure(
    model: CausalLM,
    params: PyTree,
    drafter: Drafter,
    drafter_params: PyTree = None,
    *,
    policy: Adaptive,
    batch_size: int = 1,
    prompt_tokens: int = 64,
    max_new_tokens: int = 128,
    repeats: int = 5,
    progress: Callable[[int, int], None] | None = None,
    **request: Any,
) -> CostCurve:
    """Measures the seconds of a round at each width of a policy, its parts included.

    The program is the one that decodes: a curve in which one width alone is cheap makes every round
    take it, and a drafter that backs off drafts nothing. So nothing is compiled that a call of the
    same shapes would not compile. The widths take turns, and the least of their times counts: other
    work on the machine only adds to them.

    Args:
        model: the target.
        params: its weights.
        drafter: proposes the trees.
        drafter_params: its weights, if it has any.
        policy: chooses the widths.
        batch_size: rows.
        prompt_tokens: tokens of a prompt. With `max_new_tokens` it decides on the cache, all slots
            of which a round reads.
        max_new_tokens: as in the calls that the curve is for.
        repeats: times that each width is timed; fewer, at least two, once that has taken 8 seconds.
        progress: is told (done, all) after each timing.
        request: further arguments of `jspec.prefill` for the program: sampling, key, stopping.

    Returns:
        The curve, through a point for each width, and what a round takes that drafts nothing.

    Raises:
        InputError: if the policy does not go by costs, or an argument is out of range.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> lookup = jspec.PromptLookup(num_speculative_tokens=2)
        >>> curve = measure(
        ...     model, model.init(), lookup, policy=jspec.Adaptive((0, 2)), prompt_tokens=4,
        ...     max_new_tokens=4, repeats=1,
        ... )
        >>> bool((curve.at([1, 3]) > 0).all())  # the seconds of a round of width 0 and 2
        True
    """
    if not isinstance(policy, Adaptive):
        raise InputError(
            f"policy is {policy!r:.80}, which does not go by what rounds cost; pass jspec.Adaptive"
        )
    for name, value in (
        ("batch_size", batch_size),
        ("prompt_tokens", prompt_tokens),
        ("max_new_tokens", max_new_tokens),
        ("repeats", repeats),
    ):
        check_integer(name, value, 1, None)
    # Text is not needed: shapes alone decide how long a round takes.
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (batch_size, prompt_tokens))
    started = prefill(
        model, params, tokens.astype(np.int32), drafter=drafter,
        drafter_params=drafter_params, policy=policy, policy_params=CostCurve.of({1: 1.0}),
        max_new_tokens=max_new_tokens, **request,
    )  # fmt: skip

    def timed(curve: CostCurve, in_backoff: bool, rounds: int) -> float:
        initial = _set_backoff(started, in_backoff)
        state: State = jax.block_until_ready(jax.tree.map(jnp.copy, initial))
        begin = time.perf_counter()
        drafting = Drafting(drafter, drafter_params, policy, curve)
        state = decode_rounds(model, params, state, drafting, np.int32(rounds))
        jax.block_until_ready(state.root)
        seconds = time.perf_counter() - begin
        return seconds / max(int(state.stats.num_rounds.max()), 1)

    return _measure_in_turn(policy.widths, batch_size, timed, repeats, progress)


def _set_backoff(state: State, in_backoff: bool) -> State:
    """Returns a state whose drafter is asked never, or in each of the next rounds."""
    backoff = state.policy_state.backoff
    rounds = np.full(backoff.left.shape, _ENDLESS if in_backoff else 0, np.int32)
    policy_state = replace(state.policy_state, backoff=replace(backoff, left=jnp.asarray(rounds)))
    return replace(state, policy_state=policy_state)


def _measure_in_turn(
    widths: Sequence[int],
    batch_size: int,
    timed: Callable[[CostCurve, bool, int], float],
    repeats: int,
    progress: Callable[[int, int], None] | None,
) -> CostCurve:
    """Returns the curve of `timed(curve, in_backoff, rounds)`, the seconds of one of so many rounds
    that the curve makes all of one width.

    Where less seems to take longer than more, all are timed again, up to three times as often; what
    is still out of order takes as long as what is more.
    """
    points = [batch_size * (1 + width) for width in widths]
    # The first without a draft, and every one with it.
    ways = [(points[0], True)] + [(point, False) for point in points]
    rounds, total = _ROUNDS, (2 + repeats) * len(ways)
    best, start = np.full(len(ways), np.inf), 0.0
    for turn in range(2 + _AGAIN * repeats):
        if turn >= 2 + repeats and (np.diff(best) > -_OUT_OF_ORDER * best[1:]).all():
            break
        if turn == 2:
            start = time.perf_counter()
        elif turn > _FEWEST + 1 and time.perf_counter() - start > _PATIENCE:
            if progress is not None:
                progress(total, total)
            break
        for place, (point, in_backoff) in enumerate(ways):
            curve = CostCurve.of(dict.fromkeys(points, _OUT_OF_REACH) | {point: 1.0})
            seconds = timed(curve, in_backoff, rounds)
            if turn > 1:  # the first compiles, the second tells how many rounds to time
                best[place] = min(best[place], seconds)
            elif turn == 1:
                rounds = min(max(rounds, round(_ENOUGH / seconds)), _MOST_ROUNDS)
            if progress is not None and turn < 2 + repeats:
                progress(turn * len(ways) + place + 1, total)
    undrafted, *drafted = np.minimum.accumulate(best[::-1])[::-1].tolist()
    return CostCurve.of(dict(zip(points, drafted, strict=True)), undrafted)
