"""Jobs: the work of one row between request and device, and the deltas of its answer."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jspec.costs.metrics import Metrics
from jspec.request import Request
from jspec.types import Status

PROMPT = Request(max_tokens=1)
"""Of a part of a prompt, behind which nothing is written."""


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probabilities of some tokens, as host arrays."""

    token_logprobs: Any
    """[tokens]"""
    top_tokens: Any
    """[tokens, C], or None."""
    top_logprobs: Any
    """[tokens, C], or None."""


@dataclass(frozen=True)
class Delta:
    """A row's output since the previous delta."""

    tokens: list[int]
    status: int = Status.RUNNING
    """Why the row ended, if it has: this is then its last delta."""
    stop_bytes: int = 0
    """Bytes at the end of the text that are of a stop string, or may become one."""
    logprobs: TokenLogprobs | None = None
    """Of these tokens, where the device keeps them."""
    rounds: Metrics | None = None
    """The rounds of the whole answer; with the last delta alone."""
    error: str | None = None
    """Why there will be no more; None if all went well."""
    refused: bool = False
    """True if the error is one of the request."""

    @property
    def is_last(self) -> bool:
        return self.error is not None or self.status != Status.RUNNING


@dataclass(eq=False)
class Job:
    """One row's work, from its prompt to its last delta."""

    prompt: list[int]
    request: Request
    deliver: Callable[[Delta], None]
    shared: int = 0
    goes_on: bool = False
    salt: Hashable = ""
    adapter: int = 0

    cancelled: bool = False
    """Nobody waits for it any longer. Set from any thread."""
    written: list[int] = field(default_factory=list)
    """The answer so far; the scheduler's own."""
    reused: int = 0
    """Tokens of the prompt that did not have to be read."""
    submitted_at: float = 0.0
    started_at: float | None = None
    """When its prompt was begun to be read."""
    first_at: float | None = None
    """When its first tokens came."""
    ended_at: float | None = None


class Executor(Protocol):
    """The device as the scheduler sees it. States of one row are opaque to it."""

    @property
    def num_slots(self) -> int: ...

    def read(self, tokens: Sequence[int], request: Request, earlier: Any, adapter: int = 0) -> Any:
        """Returns the one-row state after more prompt tokens. Donates `earlier`."""
        ...

    def insert(self, row: int, arrival: Any) -> None:
        """Puts a state of one row into a row; it is gone afterwards."""
        ...

    def free(self, row: int) -> None:
        """Releases a row that still runs."""
        ...

    def take(self, row: int) -> Any:
        """Returns a copy of a row as a state of one row."""
        ...

    def copy(self, arrival: Any) -> Any:
        """Returns a copy of a state of one row."""
        ...

    def step(self, waiting: bool) -> Any:
        """Returns some rounds of all rows, on the host; fewer if an awaited row has ended."""
        ...

    def deltas(self, output: Any, rows: Sequence[int]) -> list[Delta]:
        """Returns what these rows have written, out of the output."""
        ...

    def reset(self) -> None:
        """Frees all rows, after a failure that cost the device its state."""
        ...
