"""Contenders of a bench: a protocol, and jspec's own methods."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from jspec.sessions.batches import Group, Runner, outcomes, program_of, wait_for
from jspec.sessions.json_output import finish_reason
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session


@dataclass(frozen=True)
class Reply:
    """A contender's output after one prompt."""

    tokens: list[int]
    finish_reason: str
    num_rounds: int
    """Forward passes of the target that emitted these tokens."""
    metrics: dict[str, Any] | None = None
    """jspec's own figures, as in `jspec generate --json`."""


class Contender(Protocol):
    """Something that continues prompts and is timed. Each call returns when its work is done."""

    learns: bool
    """True if an answer depends on those before it."""

    def warm_up(self, group: Group) -> None:
        """Does once, untimed, what is about to be timed: compiles, fills caches of code."""
        ...

    def prefill(self, group: Group) -> None:
        """Reads the prompts alone."""
        ...

    def answer(self, group: Group) -> Any:
        """Continues the prompts, reading them included. The same call gives the same again."""
        ...

    def replies(self, group: Group, answer: Any) -> list[Reply]:
        """Returns what was written, in the order of `group.rows`; not timed."""
        ...

    def remember(self, answer: Any) -> None:
        """Takes over what was learnt of this answer, for the prompts to come."""
        ...


class Drafting:
    """A method of jspec, or plain decoding."""

    def __init__(
        self, session: Session, settings: RunSettings, plain: bool = False, cold: bool = False
    ):
        self._runner = Runner(session, settings, plain)
        self._settings = settings
        self._tokenizer = session.target.tokenizer
        self.learns = not (plain or cold)
        self._compiled: set[tuple[int, int]] = set()

    def warm_up(self, group: Group) -> None:
        shape = program_of(group, self._settings)
        if shape not in self._compiled:
            self.answer(group)
            self._compiled.add(shape)

    def prefill(self, group: Group) -> None:
        # With limits of 0 the same program reads the prompt and emits nothing.
        self._decode(replace(group, limits=np.zeros_like(group.limits)))

    def answer(self, group: Group) -> Any:
        return self._decode(group)

    def replies(self, group: Group, answer: Any) -> list[Reply]:
        import jax

        result = jax.device_get(answer.replace(drafter_state=None, policy_state=None))
        entries = outcomes(group, result, 0.0, 0.0)
        return [
            Reply(
                outcome.tokens,
                finish_reason(outcome.status),
                outcome.metrics.num_rounds,
                outcome.metrics.as_dict(),
            )
            for outcome in entries
        ]

    def remember(self, answer: Any) -> None:
        if self.learns:
            self._runner.keep(answer)

    def _decode(self, group: Group) -> Any:
        import jspec

        call = self._runner.arguments(group)
        return wait_for(lambda: jspec.decode(**call))
