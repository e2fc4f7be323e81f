"""Tables of refusals: (what is given, the sentence that refuses it)."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import jspec


def check(
    cases: Iterable[tuple[Any, str]],
    call: Callable[[Any], Any] = lambda given: given(),
    error: type[Exception] = jspec.InputError,
) -> None:
    """Calls each case and lists those that are not refused by their sentence, on one line."""
    wrong = []
    for given, message in cases:
        try:
            call(given)
        except error as refusal:
            said = str(refusal)
            if not re.search(message, said) or "\n" in said:
                wrong.append(f"{message!r}: it said {said!r}")
        else:
            wrong.append(f"{message!r}: it was not refused")
    assert not wrong, "\n".join(wrong)
