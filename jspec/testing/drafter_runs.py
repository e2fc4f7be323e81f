"""Promises of a drafter that are further runs of one compiled program."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jspec import decoding
from jspec._validate.errors import InputError
from jspec.decoding import rows
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import Drafting
from jspec.round.request import prepare
from jspec.testing.promises import Report, consistent_stats, promise, same_tokens
from jspec.testing.subject import Subject
from jspec.testing.watch import NEVER, Log, WatchedDrafter, count_traces, read_log, shapes
from jspec.types import PyTree, Result, State, Stopping

_BACKOFF = 3
"""Rounds in a row in which the drafter is not asked."""
_PREPARED = ("model", "max_new_tokens", "stopping", "sampling", "key", "row_ids")


def _insides(log: Log, row: int) -> Iterator[int]:
    """Yields places in a row's output inside an accepted path: more of the same round follows."""
    start = 0
    for count in log.counts[:, row].tolist():
        yield from range(start, start + count - 1)
        start += count


def check_cuts(
    subject: Subject,
    drafter: WatchedDrafter,
    params: PyTree,
    plain: Result,
    log: Log,
    report: Report,
) -> None:
    """Checks a run in which half the rows meet an end token, and half a limit."""
    tokens = np.asarray(plain.tokens)
    eos = np.full((subject.batch, 1), -1)
    limits = np.full(subject.batch, subject.max_new_tokens)
    inside = 0
    for row in range(subject.batch):
        places = list(_insides(log, row))
        first = [place for place in places if tokens[row, place] not in tokens[row, :place]]
        if row % 2 == 0 and first:
            eos[row] = tokens[row, first[-1]]
        elif places:
            limits[row] = places[len(places) // 2] + 1
        else:
            limits[row] = row % 4
        inside += bool(places)
    stopping = Stopping(max_tokens=limits, eos=eos)
    what = "end tokens and limits cut exactly"
    result = subject.run(drafter, params, stopping=stopping)
    same_tokens(result, subject.plain(stopping=stopping), what)
    consistent_stats(result, what)
    if inside:
        report.checked.append(f"{what}, inside accepted paths of {inside} rows")
    else:
        report.skipped.append(
            "end tokens and limits inside an accepted path: no drafted token was accepted; pass a "
            "model, params or prompts with which some are"
        )


def check_rows(subject: Subject, drafter: WatchedDrafter, params: PyTree, report: Report) -> None:
    """Checks that a row's tokens do not depend on its neighbours, nor on whether these run."""
    what = "a row does not see its neighbours"
    order = np.roll(np.arange(subject.batch), 1)[::-1]
    same_tokens(
        subject.run(drafter, params, order=order),
        subject.plain(),
        f"{what} (rows in another order, under their ids)",
        rows=order,
    )
    for row in range(2):
        most = np.where(np.arange(subject.batch) == row, subject.max_new_tokens, 0)
        alone = replace(subject.request()["stopping"], max_tokens=most)
        same_tokens(
            subject.run(drafter, params, stopping=alone),
            subject.plain(stopping=alone),
            f"{what} (only row {row} runs)",
        )
    report.checked.append(what)


def check_nan(subject: Subject, drafter: WatchedDrafter, params: PyTree, report: Report) -> None:
    """Checks rows for which the target gives NaN: one from its prompt on, one after some tokens."""
    spoiled = np.full(subject.batch, NEVER)
    spoiled[0] = subject.lengths[0] + 5
    spoiled[1] = 0
    same_tokens(
        subject.run(drafter, params, spoiled=spoiled),
        subject.plain(spoiled=spoiled),
        "a row of NaN ends alone (row 1 from its prompt on, row 0 after some tokens)",
    )
    report.checked.append("a row of NaN ends alone")


def check_goes_on(
    subject: Subject, drafter: WatchedDrafter, params: PyTree, report: Report
) -> None:
    """Checks prompts in two parts: rows that are kept, and what is appended to them."""
    what = "a text that is read in two parts is that of one call"
    asked = subject.request(drafter=drafter, drafter_params=params)
    prompt, lengths = asked.pop("prompt"), asked.pop("prompt_lengths")
    first = np.maximum(lengths // 2, 1)
    places = np.minimum(first[:, None] + np.arange(prompt.shape[1]), prompt.shape[1] - 1)
    rest = np.take_along_axis(prompt, places, axis=1)
    capacity = prepare(
        **{name: asked[name] for name in _PREPARED}, prompt=prompt, prompt_lengths=lengths
    ).capacity

    def whole():
        state = decoding.prefill(prompt=prompt, prompt_lengths=first, capacity=capacity, **asked)
        return decoding.prefill(prompt=rest, prompt_lengths=lengths - first, earlier=state, **asked)

    state, programs = count_traces(subject.model, whole)
    promise(
        programs == 0,
        f"what is appended compiles nothing: it traced the model {programs} times more",
    )
    model, weights = asked["model"], asked["params"]
    drafting: dict[str, Any] = dict(drafter=drafter, drafter_params=params)
    result = decoding.finish(model, weights, state, **drafting)
    same_tokens(result, subject.plain(), what)
    report.checked.append(what)


def check_backoff(
    subject: Subject, drafter: WatchedDrafter, params: PyTree, report: Report
) -> None:
    """Checks rounds in which the drafter is not asked, and what it drafts after them."""
    what = "rounds in which it is not asked change no token"
    asked = subject.request(drafter=drafter, drafter_params=params)
    model, weights = asked["model"], asked["params"]

    def rounds(state: State, count: int, policy: FixedWidth = FixedWidth()) -> State:
        drafting = Drafting(drafter, params, policy)
        # Of the dtype that `finish` has, for both to be one program.
        return decoding.decode_rounds(model, weights, state, drafting, np.int32(count))

    state = rounds(decoding.prefill(**asked), _BACKOFF, FixedWidth(0))
    emitted, counts = (np.asarray(array) for array in (state.tokens, state.lengths))
    state = rounds(state, 1)
    if drafter.follows_text:
        prompt = np.asarray(asked.pop("prompt"))
        lengths, read = asked.pop("prompt_lengths"), np.zeros_like(prompt)
        read[:, :_BACKOFF] = emitted[:, :_BACKOFF]
        capacity = state.capacity
        first = decoding.prefill(prompt=prompt, prompt_lengths=lengths, capacity=capacity, **asked)
        read = decoding.prefill(prompt=read, prompt_lengths=counts, earlier=first, **asked)
        own, same = (read_log(one.drafter_state) for one in (state, rounds(read, 1)))
        for row in np.flatnonzero(~own.done[-1]):
            for name in ("tokens", "parents", "valid"):
                mine, its = (
                    np.where(log.valid[-1, row], getattr(log, name)[-1, row], 0)
                    for log in (own, same)
                )
                promise(
                    np.array_equal(mine, its),
                    f"back-offs leave no gap in a memory that follows the text: row {row}, after "
                    f"{_BACKOFF} rounds in which it was not asked: {name} of its tree should be "
                    f"those after the same text as a prompt, {its.tolist()}, and are "
                    f"{mine.tolist()}",
                )
        report.checked.append("back-offs leave no gap in its memory")
    state = rounds(state, _BACKOFF, FixedWidth(0))
    drafting: dict[str, Any] = dict(drafter=drafter, drafter_params=params)
    result = decoding.finish(model, weights, state, **drafting)
    same_tokens(result, subject.plain(), what)
    report.checked.append(what)


def check_comes_and_goes(
    subject: Subject, drafter: WatchedDrafter, params: PyTree, report: Report
) -> None:
    """Checks rows whose requests come while the others run: later, and to other places."""
    what = "a request that comes later has its own tokens in any row"
    asked = subject.request(drafter=drafter, drafter_params=params)
    model, weights, last = asked["model"], asked["params"], subject.batch - 1
    state, arriving = decoding.prefill(**asked), decoding.prefill(**asked)
    drafting = Drafting(drafter, params, FixedWidth())

    def come(state: State, row: int, request: int) -> State:
        arrival = rows.copies(arriving, np.array([request]), None, None, drafting)
        return rows.insert(state, np.int32(row), arrival, drafting)

    def rounds(state: State, count: int) -> State:
        # Of the dtype that `finish` has, for both to be one program.
        return decoding.decode_rounds(model, weights, state, drafting, np.int32(count))

    # The last row is given up, and stays free for a while.
    state = rows.free(rounds(state, 2), np.int32(last), model)
    state = rounds(come(state, 0, last), 3)
    state = come(state, last, 0)
    result = decoding.finish(model, weights, state, drafter=drafter, drafter_params=params)
    requests = np.arange(subject.batch)
    requests[[0, last]] = last, 0
    same_tokens(result, subject.plain(), what, rows=requests)
    report.checked.append(what)


def check_hot_start(
    subject: Subject,
    drafter: WatchedDrafter,
    params: PyTree,
    first: Result,
    report: Report,
) -> None:
    name = type(drafter.drafter).__name__
    asked = subject.request()
    del asked["params"]
    capacity = prepare(**asked).capacity
    for batch, room in ((subject.batch, capacity), (subject.batch + 1, capacity + 16)):
        cold = drafter.drafter.init(batch, room, None)
        try:
            hot = drafter.drafter.init(
                batch, room, jax.tree.map(jax.numpy.copy, first.drafter_state.inner)
            )
        except InputError as error:
            promise(
                batch != subject.batch,
                f"a hot start goes on from a state of the same sizes: {name} refused "
                f"its own: {error}",
            )
            continue
        for part, a, b in zip(("leaves", "structure"), shapes(cold), shapes(hot), strict=True):
            promise(
                a == b,
                "a hot start compiles nothing: the memory that init gives should have the same "
                f"{part} with and without an earlier state; cold {a}, hot {b}",
            )
    hot, programs = count_traces(
        subject.model,
        lambda: subject.run(drafter, params, drafter_state=first.drafter_state),
    )
    promise(
        programs == 0,
        f"a hot start compiles nothing: it traced the model {programs} times more",
    )
    same_tokens(hot, subject.plain(), "a hot start changes no token")
    again = subject.run(drafter, params)
    same_tokens(again, subject.plain(), "a cold start after a hot one changes no token")
    report.checked.append("a hot start changes no token and compiles nothing")
