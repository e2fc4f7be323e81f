"""The output of `jspec generate` for people: text, then its speed."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from jspec.methods import COUPLED
from jspec.models import reasoning
from jspec.models.detokenise import Detokeniser
from jspec.sessions import terminal
from jspec.sessions.batches import Group, Outcome, Runner, groups, interruptible, outcomes
from jspec.sessions.json_output import finish_reason, together
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session
from jspec.types import Status

if TYPE_CHECKING:
    from jspec.types import State

_REPEATS = 5
_ENOUGH = 1.0
"""Seconds of measuring after which nothing is repeated."""

_DRAFTS = 16
_USELESS = 1.1
"""A mean acceptance length below it deserves a warning; plain decoding has 1."""

_LOST = 0.97
"""The share of plain decoding's speed below which a method lost."""

_ENDINGS = {
    "capacity": "[the model's context is full]",
    "masked": "[the settings leave no token to write]",
    "nan": "[the model's output is not a number; nothing was drawn from it]",
}

StyledText = tuple[str, str]
"""Text and its style."""


@dataclass(frozen=True)
class AnswerTiming:
    """Every prompt's outcome, and the least time that the run took."""

    outcomes: list[Outcome]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(len(outcome.tokens) for outcome in self.outcomes) / self.seconds


def show(
    session: Session,
    prompts: Sequence[list[int]],
    settings: RunSettings,
    compare: bool = True,
    echo: bool = True,
) -> None:
    """Streams the text of every prompt, then compares a draft's speed with plain decoding's."""
    screen, runner = terminal.Screen(), Runner(session, settings)
    method = session.choice.method
    drafts = method.drafts
    screen.legend(drafts)
    parts = list(groups(prompts, settings))
    streamed = []
    for group in parts:
        numbered = len(prompts) > 1
        streamed += _stream(screen, session, runner, group, numbered=numbered, echo=echo)
        runner.write()
    sys.stdout.flush()
    screen = terminal.Screen(sys.stderr)
    plain = None
    if compare and drafts:
        plain = Runner(session, settings, plain=True, request=runner.request)
        if sys.stderr.isatty():
            print("Measuring plain decoding too; --no-compare leaves it out.", file=sys.stderr)
    if plain is None:
        # Rows of a group took the same seconds.
        seconds = sum(streamed[group.rows[0]].seconds for group in parts)
        timings, repeats = [AnswerTiming(streamed, seconds)], 1
    else:
        timings, repeats = measure([runner, plain], parts)
    screen.line()
    if drafts:
        screen.line(together(timings[0].outcomes).log_line(timings[0].seconds))
    # Greedy decoding has one token to choose, in every scheme.
    scheme = session.choice.scheme if settings.request.temperature > 0 else COUPLED
    for line in report(timings, repeats, scheme):
        screen.line(line)
    if method.needs_training and (warning := doubt(timings[0].outcomes)):
        screen.line(warning)
    if plain is not None and (advice := loss(method.name, *timings)):
        print(advice, file=sys.stderr)


def measure(runners: Sequence[Runner], parts: Sequence[Group]) -> tuple[list[AnswerTiming], int]:
    """Returns each runner's best time over all groups, and the number of repeats."""
    best: list[AnswerTiming | None] = [None] * len(runners)
    total, repeats = 0.0, 0
    while repeats < _REPEATS and total < _ENOUGH:
        for place, runner in enumerate(runners):
            runner.forget()
            finished = [runner.run(group) for group in parts]
            seconds = sum(outcomes[0].seconds for outcomes in finished)
            if (old := best[place]) is None or seconds < old.seconds:
                best[place] = AnswerTiming(
                    [outcome for outcomes in finished for outcome in outcomes], seconds
                )
            total += seconds
        repeats += 1
    return [timing for timing in best if timing is not None], repeats


def report(timings: Sequence[AnswerTiming], repeats: int, scheme: str = COUPLED) -> list[str]:
    """Returns the figures, and in a second line what was measured."""
    ours, plain = timings[0], timings[1] if len(timings) > 1 else None
    figures = [
        f"{sum(len(outcome.tokens) for outcome in ours.outcomes)} tokens in {ours.seconds:.2f} s",
        f"{ours.tokens_per_second:.1f} tokens per second",
        f"{together(ours.outcomes).tokens_per_round:.2f} tokens per round",
    ]
    path = "from prompt to last token"
    if plain is None:
        return [" · ".join(figures), f"Measured: jspec.stream, compiled, {path}, as shown above."]
    what = f"jspec.decode, compiled, {path}, best of {repeats}"
    if not plain.tokens_per_second:  # a model that writes nothing has no speed
        return [" · ".join(figures), f"Measured: {what}."]
    speedup = ours.tokens_per_second / plain.tokens_per_second
    figures.append(f"{speedup:.2f} times plain decoding ({plain.tokens_per_second:.1f})")
    what += ". Plain decoding was measured likewise, on the same prompts and limits, and gave"
    return [" · ".join(figures), f"Measured: {what} {_agreement(ours, plain, scheme)}."]


def doubt(outcomes: Sequence[Outcome]) -> str | None:
    """Returns a warning if almost none of a trained head's drafts were accepted."""
    drafts = together(outcomes)
    length = drafts.mean_acceptance_length
    if drafts.num_drafts < _DRAFTS or length >= _USELESS:
        return None
    return (
        f"Warning: a mean acceptance length of {length:.2f} means that the head's drafts are "
        "hardly ever accepted; it may have been trained for another model, or for other text."
    )


def loss(name: str, ours: AnswerTiming, plain: AnswerTiming) -> str | None:
    """Returns a note if a method was slower than plain decoding; else None."""
    if ours.tokens_per_second >= _LOST * plain.tokens_per_second:
        return None
    speedup = ours.tokens_per_second / plain.tokens_per_second
    return (
        f"jspec: {name} lost against plain decoding here, at {speedup:.2f} times its speed; "
        "--method autoregressive decodes plainly, and jspec bench finds what pays on your prompts"
    )


def _agreement(ours: AnswerTiming, plain: AnswerTiming, scheme: str) -> str:
    for outcome, other in zip(ours.outcomes, plain.outcomes, strict=True):
        if outcome.tokens != other.tokens:
            if scheme != COUPLED:
                return f"other tokens of the same distribution, as scheme {scheme} draws its own"
            pairs = enumerate(zip(outcome.tokens, other.tokens, strict=False))
            place = next((i for i, (a, b) in pairs if a != b), 0)
            return (
                f"other tokens from number {place + 1} of prompt {outcome.row + 1} on "
                "(forward passes of different width round differently; --dtype float32 does so "
                "least)"
            )
    return "the same tokens"


def _stream(
    screen: terminal.Screen,
    session: Session,
    runner: Runner,
    group: Group,
    numbered: bool,
    echo: bool,
) -> list[Outcome]:
    """Shows the text of a group: round by round if it is one prompt, else one after the other."""
    buffers: list[list[StyledText]] = [[] for _ in group.rows]
    alone = len(group.rows) == 1
    sinks: list[Callable[[StyledText], None]] = [pieces.append for pieces in buffers]
    if alone:
        if numbered:
            screen.line(f"[{group.rows[0] + 1}]")
        sinks = [lambda piece: screen.text(*piece)]
    streamed = _pieces(session, runner, group, sinks, echo)
    for outcome, pieces in zip(streamed, buffers, strict=True):
        if not alone:
            screen.line(f"[{outcome.row + 1}]")
        for piece in pieces:
            screen.text(*piece)
        screen.line()
        if (ending := finish_reason(outcome.status)) in _ENDINGS:
            screen.line(_ENDINGS[ending])
    return streamed


def _pieces(
    session: Session,
    runner: Runner,
    group: Group,
    sinks: Sequence[Callable[[StyledText], None]],
    echo: bool,
) -> list[Outcome]:
    """Sends every row's pieces to its sink as they come."""
    import jax

    import jspec

    arguments = runner.arguments(group)
    rows = []
    for place, sink in enumerate(sinks):
        prompt = group.prompt[place, : group.lengths[place]].tolist()
        rows.append(AnswerPieces(session, prompt))
        if echo:
            sink((rows[place].row.prompt, terminal.PROMPT))
    runner.compile(group)
    begin, first = time.perf_counter(), None
    chunks = interruptible(lambda: jspec.stream(**arguments))
    state = None
    while (chunk := interruptible(lambda: next(chunks, None))) is not None:
        state = chunk.state
        first = first or time.perf_counter() - begin
        for row, sink, *new in zip(
            rows, sinks, chunk.tokens, chunk.drafted, state.status.tolist(),
            _stop_bytes(state, len(rows)), strict=False,
        ):  # fmt: skip
            for piece in row.push(*new):
                sink(piece)
    assert state is not None, "limits are at least 1, so there was a round"
    seconds = time.perf_counter() - begin
    result = runner.finish(state)
    runner.keep(result)
    return outcomes(group, jax.device_get(result), seconds, first or seconds)


class AnswerPieces:
    """The text of a row as it comes, in pieces of one style: thoughts are dim."""

    def __init__(self, session: Session, prompt: Sequence[int]):
        tokenizer, marks = session.target.tokenizer, session.marks
        self.row = Detokeniser(tokenizer, prompt)
        self._parts = reasoning.parts(tokenizer, marks, prompt)
        self.text = self.thoughts = self.content = ""

    def push(
        self, tokens: Sequence[int], drafted: Sequence[bool], status: int, stop_bytes: int = 0
    ) -> list[StyledText]:
        """Returns the pieces of a round; its status says whether it is the last one."""
        rest = tokens[:-1] if status == Status.EOS else tokens
        pairs, pieces = zip(drafted, rest, strict=False), []
        for confirmed, run in groupby(pairs, itemgetter(0)):
            new = [token for _, token in run]
            rest = rest[len(new) :]
            piece = self.row.push(new, max(stop_bytes - self.row.num_bytes(rest), 0))
            pieces.append((piece, terminal.DRAFTED if confirmed else terminal.OWN))
        if status:
            pieces.append((self.row.finish(stop_bytes=stop_bytes), terminal.OWN))
        output = []
        for place, (piece, style) in enumerate(pieces, 1):
            thoughts, content = self._parts.read(piece, bool(status) and place == len(pieces))
            between = "\n\n" if content and self.thoughts + thoughts and not self.content else ""
            output += [(thoughts, terminal.PROMPT), (between + content, style)]
            self.text += piece
            self.thoughts += thoughts
            self.content += content
        return output


def _stop_bytes(state: "State", count: int) -> list[int]:
    """Returns the bytes that stop strings have of each row's last token."""
    stop_bytes = state.stop_bytes
    return [0] * count if stop_bytes is None else stop_bytes[:count].tolist()
