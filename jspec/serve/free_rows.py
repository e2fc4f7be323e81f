"""Rows that nobody uses, and the texts that they hold."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from jspec._validate.errors import InputError
from jspec.serve.jobs import Executor
from jspec.serve.prefixes import Prefixes, begins

_NONE: tuple[Hashable, Sequence[int]] = ("", ())
"""The text of an empty row."""


class FreeRows:
    """Rows that nobody uses, the longest free first, with the text of each.

    While no row writes a text stays where it is, for a next turn to go on from: one who chats alone
    copies nothing. Before others write alongside it, it is kept among the prefixes.
    """

    def __init__(self, device: Executor, prefixes: Prefixes, call: Callable[..., Any]):
        self._device = device
        self._prefixes = prefixes
        self._call = call
        self._texts: OrderedDict[int, tuple[Hashable, Sequence[int]]] = OrderedDict()
        self._full: set[int] = set()
        """Rows that hold a text, in use or free."""
        self.reset()

    def __len__(self) -> int:
        return len(self._texts)

    def reset(self) -> None:
        """Frees and empties all rows."""
        self._texts = OrderedDict((row, _NONE) for row in range(self._device.num_slots))
        self._full.clear()

    def give(self, row: int, text: Sequence[int] = (), salt: Hashable = "") -> None:
        """Frees a row."""
        self._texts[row] = salt, text
        self._full.add(row)

    def take(self) -> int:
        """Returns a row for somebody, without a text to go on from if there is one."""
        empty = (row for row, (_, text) in self._texts.items() if not text)
        row = next(empty, next(iter(self._texts)))
        self._keep(row)
        del self._texts[row]
        self._full.discard(row)
        return row

    def clear(self) -> None:
        """Empties the rows: rounds of others would read its contents, too."""
        for row in list(self._full):
            self._keep(row)
            self._call(self._device.free, row)
            self._texts[row] = _NONE
        self._full.clear()

    def find(self, prompt: Sequence[int], salt: Hashable = "") -> tuple[int, Any]:
        """Returns the longest known beginning of a prompt: (length, a state of one row); (0, None)
        if there is none. The state is the caller's own.
        """
        size, state = self._prefixes.find(prompt, salt)
        longest, best = size, None
        for row, (row_salt, text) in self._texts.items():
            if row_salt == salt and len(text) > longest and begins(prompt, text):
                best, longest = row, len(text)
        if best is not None and (row_state := self._take(best)) is not None:
            return longest, row_state
        return size, None if state is None else self._call(self._device.copy, state)

    def _keep(self, row: int) -> None:
        salt, text = self._texts[row]
        should_keep = text and self._prefixes.wants(text, salt)
        if should_keep and (state := self._take(row)) is not None:
            self._prefixes.keep(text, state, salt)

    def _take(self, row: int) -> Any:
        """Returns a copy of a row; None if its text cannot go on, which is then not kept."""
        try:
            return self._call(self._device.take, row)
        except InputError:
            return None
