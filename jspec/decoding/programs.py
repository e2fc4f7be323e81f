"""The compiled programs of a service: all of them made beforehand, and none unnoticed later.

A program follows from the number of rows, the capacity bucket and the kind of the request, never
from lengths, limits or settings of rows. So what a service will run is known before it starts.
"""

import logging
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Unpack

import jax
import numpy as np

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError, RecompileError
from jspec.decoding import Asked, decode, output_size
from jspec.decoding.streaming import stream
from jspec.protocols import CausalLM
from jspec.request import by_row
from jspec.round.request import Prepared, bucket, check_model
from jspec.types import PyTree, State, Stopping

_COMPILES = "/jax/core/compile/backend_compile_duration"
"""The event of `jax.monitoring` that begins when a program is not in memory."""
_LOGGER = "jax._src.interpreters.pxla"
"""The logger of JAX that names the types of a program's arguments before compiling it."""
_SHOWN = 12


@dataclass(frozen=True)
class Program:
    """A program of `decode`: the same for all prompts that fit."""

    rows: int
    capacity: int
    """Maximum number of tokens that a row holds, prompt and output together."""


def warmup(
    model: CausalLM,
    params: PyTree,
    *,
    prompt_tokens: int,
    rows: int | Sequence[int] = 1,
    **request: Unpack[Asked],
) -> tuple[Program, ...]:
    """Compiles every program that `decode` and `stream` can run for prompts up to a length.

    One for each number of rows and capacity bucket (128, 256, 512, ..), by calls that may emit
    nothing. Give settings as the calls will: whether there is sampling, a grammar or `logprobs`,
    and how many end tokens a row has, is part of a program; their values are not. Outputs are cut
    to `max_new_tokens` by a small program for each value of it; `Stopping.max_tokens` needs none.
    Prompts are lists, or arrays of NumPy or on the device, of any width.

    Args:
        model: the target; static.
        params: its weights.
        prompt_tokens: most tokens of a prompt.
        rows: number of rows of a call, or all numbers that occur.
        request: all else as in the calls of `decode`, but for the prompt and its lengths.

    Returns:
        The programs, by rows and capacity.

    Raises:
        InputError: if a number is out of range, or as in `decode`.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM(context=None)
        >>> jspec.warmup(model, model.init(), prompt_tokens=200, max_new_tokens=50)
        (Program(rows=1, capacity=128), Program(rows=1, capacity=256))
        >>> with jspec.no_recompile():
        ...     result = jspec.decode(model, model.init(), [[1, 2, 3]], max_new_tokens=50)
    """
    for name in ("prompt", "prompt_lengths"):
        if name in request:
            raise InputError(
                f"{name} came to warmup, which compiles for prompts of every length; leave it out"
            )
    check_model(model, params)
    batches = row_counts(rows)
    check_integer("prompt_tokens", prompt_tokens, 1, model.context)
    call: dict[str, Any] = {**request}
    asks, stopping = call.get("request"), call.get("stopping") or Stopping()
    call["max_new_tokens"] = new_tokens = output_size(asks, call.get("max_new_tokens"))
    check_integer("max_new_tokens", new_tokens, 1, model.context)
    programs = []
    for batch in batches:
        if asks is None:
            call["stopping"] = replace(stopping, max_tokens=np.zeros(batch, np.int32))
        else:
            call["request"] = [
                replace(row_request, max_tokens=0) for row_request in by_row(asks, batch)
            ]
        for capacity, size in buckets(prompt_tokens, new_tokens, model.context):
            prompt = np.zeros((batch, size), np.int32)
            jax.block_until_ready(decode(model, params, prompt, **call).lengths)
            list(stream(model, params, prompt, **call))
            programs.append(Program(batch, capacity))
    return tuple(programs)


def row_counts(rows: int | Sequence[int]) -> list[int]:
    """Returns the numbers of rows, each once and rising."""
    counts = list(rows) if isinstance(rows, Iterable) else [rows]
    if not counts:
        raise InputError("rows is empty; give the number of rows of a call, or several")
    for count in counts:
        check_integer("rows", count, 1, None)
    return sorted(set(counts))


def buckets(longest: int, more: int, context: int | None) -> Iterator[tuple[int, int]]:
    """Yields each number of slots that such calls have, and the length of a prompt that has it."""
    size, last = 1, None
    while size <= longest:
        room = bucket(size + more)
        capacity = room if context is None else min(room, context)
        if capacity != last:
            yield capacity, size
        last, size = capacity, room - more + 1


@contextmanager
def no_recompile() -> Iterator[None]:
    """Yields a context in which a compilation is an error: a slow call that no one asked for.

    What was compiled before runs, in this thread; other threads may compile. Small programs count
    too: an operation on an array of a new shape is one. What `jspec.metrics.of` reads of a result
    compiles nothing.

    Raises:
        RecompileError: where a program would be compiled, before it is.

    Example:
        >>> import jax, jspec
        >>> double = jax.jit(lambda x: x + x)
        >>> with jspec.no_recompile():
        ...     double(jax.numpy.zeros(3))
        Traceback (most recent call last):
        jspec.RecompileError: jit(...
    """
    mine, types = threading.get_ident(), _Types()
    jax_log = logging.getLogger(_LOGGER)
    level = jax_log.level

    def begins(event: str, value: float, **about: Any) -> None:
        del value  # the time
        if event == _COMPILES and threading.get_ident() == mine:
            raise RecompileError(
                f"{about.get('fun_name', 'a program')} would be compiled{types.text()}{_call()} "
                "inside jspec.no_recompile(); warm it up for these shapes with jspec.warmup(..), "
                "or run it once before the context"
            )

    jax.monitoring.register_scalar_listener(begins)
    jax_log.addFilter(types)
    if not jax_log.isEnabledFor(logging.DEBUG):
        types.silent = True
        jax_log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        jax_log.setLevel(level)
        jax_log.removeFilter(types)
        jax.monitoring.unregister_scalar_listener(begins)


def _call() -> str:
    """Returns the rows and capacity of the call of jspec that is under way, from its frames."""
    for frame, _ in traceback.walk_stack(None):
        if frame.f_globals.get("__name__") == "jspec.decoding":
            names = frame.f_locals
            if isinstance(call := names.get("call"), Prepared):
                rows, capacity = len(call.arrays.prompt_lengths), call.capacity
            elif isinstance(state := names.get("state"), State):
                rows, capacity = len(state.root), state.capacity
            else:
                continue
            return f" for a call of {rows} rows of {capacity} tokens"
    return ""


class _Types(logging.Filter):
    """The argument types of the program that JAX logged last."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Sequence[Any] = ()
        self.silent = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.DEBUG and isinstance(record.args, tuple):
            self.last = next((part for part in record.args if isinstance(part, list | tuple)), ())
        return not (self.silent and record.levelno == logging.DEBUG)

    def text(self) -> str:
        # The weights come first, and are the same for every call.
        kinds = [getattr(kind, "str_short", lambda: "")() for kind in self.last]
        labels = list(dict.fromkeys(filter(None, reversed(kinds))))[:_SHOWN]
        return f" from arrays of {', '.join(reversed(labels))}" if labels else ""
