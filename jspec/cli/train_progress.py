"""The progress of a long run: a bar on a terminal, and lines in a file or a pipe."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress

PAUSE = 30.0
"""Seconds between two lines."""


@dataclass
class ProgressLines:
    """Progress as lines, of which each says how far the run is and how long it will go on."""

    console: Console
    what: str
    total: int
    done: int = 0
    _first: tuple[float, int] | None = field(default=None, init=False)
    _last: float = field(default=float("-inf"), init=False)

    def update(self, done: int, note: str) -> None:
        """Writes a line, unless one was written shortly before and there is more to come."""
        now = time.monotonic()
        # The first unit compiles, so that the pace is taken from the second on.
        self._first = self._first or (now, done)
        if now - self._last < PAUSE and done < self.total:
            return
        self._last = now
        began, before = self._first
        remaining = ""
        if self.total > done > before:
            seconds = (now - began) / (done - before)
            remaining = f", {seconds:.2f} s each, {(self.total - done) * seconds / 60:.0f} min left"
        text = f"{self.what} {done:,} of {self.total:,}{remaining}{note and ': '}{note}"
        self.console.print(text, soft_wrap=True)
        self.console.file.flush()


@dataclass
class Bar:
    """Progress as a bar that moves."""

    progress: Progress
    task: object
    what: str

    def update(self, done: int, note: str) -> None:
        """Moves it."""
        text = f"{self.what}, {note}" if note else self.what
        self.progress.update(self.task, completed=done, description=text)  # pyright: ignore[reportArgumentType]


@contextmanager
def show(console: Console, what: str, total: int, done: int = 0) -> Iterator[Bar | ProgressLines]:
    """Yields a bar where someone can watch it, else lines."""
    if not console.is_terminal:
        yield ProgressLines(console, what, total, done)
        return
    with Progress(console=console) as progress:
        yield Bar(progress, progress.add_task(what, total=total, completed=done), what)
