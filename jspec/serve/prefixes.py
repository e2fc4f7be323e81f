"""Prefix cache: beginnings that several prompts share, and conversations."""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

WORTH = 32
"""The fewest tokens for which a state is kept, or fetched: fewer are as quickly read again."""
_RECENT = 32


class Prefixes:
    """Texts that were read, with the states behind them; the least recently used goes first."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._states: OrderedDict[tuple[Hashable, tuple[int, ...]], Any] = OrderedDict()
        self._recent: deque[tuple[Hashable, np.ndarray]] = deque(maxlen=_RECENT)

    def __len__(self) -> int:
        return len(self._states)

    def find(self, prompt: Sequence[int], salt: Hashable = "") -> tuple[int, Any]:
        """Returns the longest known prefix of a prompt that leaves a token: (length, state).

        The state is kept, so whoever donates it copies it first. (0, None) if there is none.
        """
        best: tuple[int, ...] = ()
        for state_salt, tokens in self._states:
            if state_salt == salt and len(best) < len(tokens) and begins(prompt, tokens):
                best = tokens
        if len(best) < WORTH:
            return 0, None
        self._states.move_to_end((salt, best))
        return len(best), self._states[salt, best]

    def keep(self, text: Sequence[int], state: Any, salt: Hashable = "") -> None:
        """Keeps a state, if there is room for any."""
        if not self.capacity:
            return
        self._states[salt, tuple(text)] = state
        self._states.move_to_end((salt, tuple(text)))
        while len(self._states) > self.capacity:
            self._states.popitem(last=False)

    def wants(self, text: Sequence[int], salt: Hashable = "") -> bool:
        """Returns whether a state behind this text is worth keeping."""
        is_stored = (salt, tuple(text)) in self._states
        return self.capacity > 0 and len(text) >= WORTH and not is_stored

    def boundary(self, prompt: list[int], size: int, shared: int, salt: Hashable = "") -> int:
        """Returns where to stop reading to share the state with similar prompts; 0: nowhere."""
        text = np.array(prompt, np.int32)
        common = [
            common_length(text, other) for recent_salt, other in self._recent if recent_salt == salt
        ]
        self._recent.append((salt, text))
        place = min(max([shared, *common]), len(prompt) - 1)
        if place >= size + WORTH and self.wants(prompt[:place], salt):
            return place
        return 0

    def clear(self) -> None:
        """Forgets all."""
        self._states.clear()


def begins(prompt: Sequence[int], text: Sequence[int]) -> bool:
    """Returns whether a prompt begins with a text and goes on behind it."""
    size = len(text)
    return size < len(prompt) and prompt[size - 1] == text[-1] and list(prompt[:size]) == list(text)


def common_length(first: np.ndarray, second: np.ndarray) -> int:
    """Returns the number of tokens that two texts have in common at their begin."""
    size = min(len(first), len(second))
    differ = first[:size] != second[:size]
    return int(differ.argmax()) if differ.any() else size
