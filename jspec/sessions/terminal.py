"""Text on a terminal as it comes, coloured by who proposed it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.text import Text

DRAFTED = "green"
OWN = "default"
PROMPT = "dim"

_held: list[str] | None = None
"""The reading that is waited for; None while there is none."""


def note(text: str) -> None:
    """Shows a line on standard error; not into a line that somebody writes, but behind it."""
    if _held is None:
        print(text, file=sys.stderr)
    else:
        _held.append(text)


@contextmanager
def reading() -> Iterator[None]:
    """Yields a context in which a line of standard input is read."""
    global _held
    _held = []
    try:
        yield
    finally:
        notes, _held = _held, None
        for text in notes:
            note(text)


class Screen:
    """A stream. Styles and legend only where colours are shown; elsewhere the bare text."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        if hasattr(self._stream, "reconfigure"):
            # An output that is not UTF-8 shows "?" rather than end the run.
            self._stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
        self._console = Console(file=self._stream, highlight=False)
        self._bare = not self._console.is_terminal
        self.coloured = self._console.color_system is not None and not self._console.no_color

    def legend(self, drafts: bool) -> None:
        """Explains the colours in one line."""
        if self.coloured:
            model_part = ("drawn by the model itself" if drafts else "generated", OWN)
            drafted = [("drafted and confirmed", DRAFTED), " · "] if drafts else []
            self._console.print(
                Text.assemble(("prompt", PROMPT), " · ", *drafted, model_part), end="\n\n"
            )

    def text(self, piece: str, style: str) -> None:
        """Shows a piece at once, as it is; a terminal gets no control characters."""
        if self._bare:
            self._stream.write(piece)
        elif piece:
            safe = "".join(c for c in piece if c in "\n\t" or c.isprintable() or ord(c) >= 0xA0)
            self._console.out(safe, style=style, highlight=False, end="")
        self._stream.flush()

    def line(self, line: str = "") -> None:
        """Shows a line of the program's own."""
        self._console.print(line, markup=False, soft_wrap=True)
