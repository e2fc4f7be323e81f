"""The errors of jspec: input that it refuses, and runs that cannot go on."""

from collections.abc import Iterator
from contextlib import contextmanager

_MOST = 1000
"""Letters of a sentence."""


class InputError(ValueError):
    """Input that jspec refuses, in one sentence: the value, the bound and the fix.

    Everything that jspec itself refuses is one of these; any other exception is a bug, of jspec or
    of what it was given. Nothing was compiled, and nothing was lost.

    It is one line and fits a screen, whatever was given.

    Example:
        >>> import jspec
        >>> jspec.PromptLookup(num_speculative_tokens=0)
        Traceback (most recent call last):
        jspec.InputError: num_speculative_tokens is 0; pass an integer of at least 1
    """

    __module__ = "jspec"  # as users reach it, and as messages name it

    def __init__(self, message: object = ""):
        super().__init__(on_a_screen(str(message)))


def on_a_screen(text: str) -> str:
    """Puts a text on one line, and shortens it in its middle if it is longer than a screen."""
    text = " ".join(line.strip() for line in text.splitlines())  # NumPy writes arrays on several
    return text if len(text) <= _MOST else f"{text[: _MOST - 304]} .. {text[-300:]}"


@contextmanager
def unreadable(what: str, fix: str) -> Iterator[None]:
    """Turns errors of libraries that read damaged files into one sentence."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{what} cannot be read ({reason:.200}); {fix}") from error


class DecodeError(RuntimeError):
    """Rows of a result ended by a failure: see `jspec.Result.raise_if_failed`."""

    __module__ = "jspec"


class RecompileError(RuntimeError):
    """A program would have been compiled inside `jspec.no_recompile()`.

    It names the function, its last arguments' shapes, rows and capacity. Nothing was compiled.
    """

    __module__ = "jspec"


class RunStopped(RuntimeError):
    """A long run cannot go on, for want of disk space for instance."""
