"""Prompts in groups through `jspec.decode`; each group starts hot, where the last one ended."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jspec.costs.metrics import Metrics, by_row
from jspec.request import Request
from jspec.sessions.memory_file import MemoryFile
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session

if TYPE_CHECKING:
    from jspec.types import Logprobs, PyTree, Result, State

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Rows that run together, padded to one shape for all groups."""

    rows: list[int]
    """The prompts' places, counted from 0; their randomness follows from these."""
    prompt: np.ndarray
    """Token ids [B, T], padded on the right."""
    lengths: np.ndarray
    """Tokens of each prompt, [B]."""
    limits: np.ndarray
    """Maximum number of new tokens of each row, [B]; 0 in rows that only fill up the last group."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one prompt."""

    row: int
    prompt: list[int]
    tokens: list[int]
    status: int
    metrics: Metrics
    seconds: float
    """The seconds that its group took."""
    first_token_seconds: float
    """Seconds until all rows of its group had a token."""
    stop_bytes: int = 0
    """The bytes at the end of its text that are of a stop string."""
    logprobs: "Logprobs | None" = None
    """Of its tokens, one row on the host."""


class Runner:
    """Runs groups one after the other and carries the drafter's memory from each to the next."""

    def __init__(
        self,
        session: Session,
        settings: RunSettings,
        plain: bool = False,
        request: Request | None = None,
    ):
        """Leaves the session's drafter out with `plain`, for a comparison."""
        from jspec.drafters.autoregressive import Autoregressive
        from jspec.methods import LLM

        self._session = session
        self._settings = settings
        llm = session.llm
        self._llm = LLM(llm.target, drafter=Autoregressive()) if plain else llm
        self.request = request or settings.request_of(llm.target, session.lead)
        """What is asked for, but for the most tokens."""
        if not plain and settings.form:
            self._llm = llm.with_jump_forward()
        self._file: MemoryFile | None = None
        if settings.memory is not None and not plain:
            self._file = MemoryFile(settings.memory, session.target, self._llm.drafter)
        first = None if self._file is None else self._file.read()
        self._first: dict[str, PyTree] = {"drafter_state": first, "policy_state": None}
        self._known = self._first
        self._compiled: set[Any] = set()

    def forget(self) -> None:
        """Resets to the start, cold or with the memory of `--memory`; compiled programs stay."""
        self._known = self._first

    def run(self, group: Group) -> list[Outcome]:
        """Decodes a group. Its seconds are those of compiled code, from prompt to last token."""
        import jax

        import jspec

        self.compile(group)
        arguments = self.arguments(group)
        begin = time.perf_counter()
        # The programs of `jspec.decode`; the first round alone shows when the first token is there.
        state = wait_for(lambda: jspec.prefill(**arguments))
        model, params = arguments["model"], arguments["params"]
        state = wait_for(lambda: jspec.step(model, params, state, **self._llm.drafting))
        first = time.perf_counter() - begin
        result = self.finish(state)
        seconds = time.perf_counter() - begin
        self.keep(result)
        return outcomes(group, jax.device_get(result), seconds, first)

    def finish(self, state: "State") -> "Result":
        """Runs the rounds that are left."""
        import jspec

        target, drafting = self._session.target, self._llm.drafting
        return wait_for(lambda: jspec.finish(target.model, target.params, state, **drafting))

    def compile(self, group: Group) -> None:
        """Compiles the programs of a group, once."""
        import jspec

        if (key := program_of(group, self._settings)) not in self._compiled:
            # With limits of 0 the same programs are compiled and emit nothing.
            idle = self.arguments(replace(group, limits=np.zeros_like(group.limits)))
            wait_for(lambda: jspec.decode(**idle))
            self._compiled.add(key)

    def arguments(self, group: Group) -> dict[str, Any]:
        """Returns the arguments of `jspec.decode` and `jspec.stream`."""
        settings, target = self._settings, self._session.target
        model = target.model
        # More than the context is room that is never filled, and the output is made in advance.
        context = model.context
        longest = settings.max_new_tokens if context is None else context
        limits = np.minimum(group.limits, longest).tolist()
        ids = [*group.rows, *[0] * (len(limits) - len(group.rows))]
        rows = [
            replace(self.request, max_tokens=limit, row_id=row)
            for limit, row in zip(limits, ids, strict=True)
        ]
        call: dict[str, Any] = dict(
            model=model,
            params=target.params,
            prompt=group.prompt,
            prompt_lengths=group.lengths,
            **self._llm.drafting,
            max_new_tokens=min(settings.max_new_tokens, longest),
            request=rows,
        )
        return call | self._known

    def keep(self, after: "State | Result") -> None:
        """Takes over what drafter and policy remember of a run."""
        self._known = {name: getattr(after, name) for name in self._known}

    def write(self, state: "PyTree" = None) -> None:
        """Writes the drafter's memory, or the one that is given, to the file of `--memory`."""
        if self._file is not None:
            self._file.write(self._known["drafter_state"] if state is None else state)


def groups(prompts: Sequence[list[int]], settings: RunSettings) -> Iterator[Group]:
    """Yields the prompts in their order, `batch_size` at a time."""
    size = min(settings.batch_size, len(prompts))
    for start in range(0, len(prompts), size):
        members = list(range(start, min(start + size, len(prompts))))
        # The last group is filled up with copies that emit nothing, so that one program fits all.
        filled = [prompts[row] for row in members]
        filled += [prompts[start]] * (size - len(members))
        lengths = np.array([len(prompt) for prompt in filled], np.int32)
        padded = np.zeros((size, lengths.max()), np.int32)
        for place, prompt in enumerate(filled):
            padded[place, : len(prompt)] = prompt
        limits = np.where(np.arange(size) < len(members), settings.max_new_tokens, 0)
        yield Group(members, padded, lengths, limits.astype(np.int32))


def outcomes(
    group: Group, result: "Result", seconds: float, first_token_seconds: float
) -> list[Outcome]:
    """Returns one per row of the group that is not filling; the result is on the host."""
    import jax

    rows = by_row(result.stats)
    return [
        Outcome(
            row=row,
            prompt=group.prompt[place, : group.lengths[place]].tolist(),
            tokens=result.tokens[place, : result.lengths[place]].tolist(),
            status=int(result.status[place]),
            metrics=rows[place],
            seconds=seconds,
            first_token_seconds=first_token_seconds,
            stop_bytes=0 if result.stop_bytes is None else int(result.stop_bytes[place]),
            logprobs=jax.tree.map(
                lambda values, place=place: values[place][None, : result.lengths[place]],
                result.logprobs,
            ),
        )
        for place, row in enumerate(group.rows)
    ]


def interruptible(work: Callable[[], T]) -> T:
    """Waits for `work` in a way that Ctrl-C ends; compiled code itself hears no signal."""
    return _WORKER.submit(work).result()


def wait_for(work: Callable[[], T]) -> T:
    """Waits likewise until the arrays are there that `work` returns."""
    import jax

    return interruptible(lambda: jax.block_until_ready(work()))


_WORKER = ThreadPoolExecutor(1, thread_name_prefix="jspec")


def program_of(group: Group, settings: RunSettings) -> tuple[int, int]:
    """Returns the (rows, capacity) of a group, on which its programs depend."""
    from jspec.round.request import bucket

    return len(group.lengths), bucket(int(group.lengths.max()) + settings.max_new_tokens)
