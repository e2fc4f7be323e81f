"""What is said of an error, and which errors are the user's to mend."""

import dis
import sys
from types import TracebackType


def complain(message: str) -> None:
    """One line on standard error."""
    print(f"jspec: {' '.join(message.split())}", file=sys.stderr)


def is_refusal(error: ValueError) -> bool:
    """Whether jspec refused its input: a `raise` of its own ended the call.

    A ValueError that JAX, numpy or the interpreter raises is a bug and keeps its traceback.
    """
    last = _last(error.__traceback__)
    if last is None or not last.tb_frame.f_globals.get("__name__", "").startswith("jspec."):
        return False
    steps = {step.offset: step.opname for step in dis.get_instructions(last.tb_frame.f_code)}
    return steps.get(last.tb_lasti) in ("RAISE_VARARGS", "RERAISE")


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback
