"""Grammars and stop strings, each made in a process of its own: it has an end, and bounds.

Nobody knows beforehand what an expression or a schema comes to. A thread that makes one cannot be
ended, and takes its time from all others; a process can, and gives back what it took.
"""

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

# Loaded once, by the process that all others are forked from.
import scipy.sparse.csgraph as _  # noqa: F401

from jspec._validate.errors import InputError
from jspec.processors import grammar
from jspec.processors.grammar import process_memory
from jspec.processors.grammar.stops import StopStrings, stop_strings
from jspec.serve.workers import Patience, out_of_time

_LOOK_SECONDS = 0.05
"""Seconds between two looks at whether anybody still waits."""
_MEGABYTE = 2**20

Asked = tuple[str, Any, int]
"""The kind as `jspec.grammar` names it, or "stops"; its text; and its most states."""
Product = grammar.Grammar | StopStrings


class AutomatonMaker:
    """Makes automata in processes; from any thread."""

    def __init__(self, spelled: Sequence[bytes | None], megabytes: int):
        self._spelled = spelled
        self._megabytes = megabytes
        methods = multiprocessing.get_all_start_methods()
        # A process that knows JAX and its threads cannot be forked; one that only imported can.
        self._context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        if "forkserver" in methods:
            self._context.set_forkserver_preload(["__main__", __name__])
        self._lock = threading.Lock()
        self._running: set[BaseProcess] = set()
        self._closed = False

    def warm_up(self) -> None:
        """Starts the process that others are forked from, which takes a second or two."""
        self.make([], Patience(60))

    def make(self, requests: Sequence[Asked], patience: Patience) -> list[Product]:
        """Returns the automata."""
        receiver, sender = self._context.Pipe(duplex=False)
        arguments = sender, self._spelled, list(requests), self._megabytes, patience.seconds
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        with self._lock:
            if self._closed:
                raise InputError("the server is shutting down")
            process.start()
            self._running.add(process)
        sender.close()
        try:
            while not receiver.poll(_LOOK_SECONDS):
                if patience.left <= 0:
                    raise InputError(out_of_time("the automaton", patience.seconds))
            products, message = receiver.recv()
        except EOFError:
            raise InputError(self._too_much()) from None
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)
            receiver.close()
        if message is not None:
            raise InputError(message)
        if products is None:
            raise InputError(self._too_much())
        return products

    def close(self) -> None:
        """Ends all that is being made."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            _end(process)

    def _too_much(self) -> str:
        return (
            f"the automaton took more than {self._megabytes} MB; make it smaller, or start the "
            "server with more --form-megabytes"
        )


def _end(process: BaseProcess) -> None:
    if process.is_alive() and process.pid is not None:
        # The group, once it has one of its own: outlines-core runs in a process below it.
        with suppress(AttributeError, ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.join()


def _work(
    sender: Connection,
    spelled: Sequence[bytes | None],
    requests: Sequence[Asked],
    megabytes: int,
    seconds: float,
) -> None:
    """Makes automata in a process of its own, and sends what came of it."""
    with suppress(AttributeError, ImportError, OSError):  # not every system has them
        os.setsid()
        os.nice(5)  # rows that write come first
        # What is held already does not count. A process below has what is left of it.
        process_memory.bound(megabytes * _MEGABYTE)
        _bound(seconds)
    answer: tuple[list[Product] | None, str | None]
    try:
        answer = [_make(spelled, *request, seconds) for request in requests], None
    except InputError as error:
        answer = None, str(error)
    except MemoryError:
        answer = None, None
    sender.send(answer)


def _bound(seconds: float) -> None:
    """Limits the processor time of this process and what it starts."""
    import resource

    # If the server is gone, nobody else ends this.
    most_seconds = math.ceil(seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))


def _make(
    spelled: Sequence[bytes | None], kind: str, text: Any, states: int, seconds: float
) -> Product:
    if kind == "stops":
        return stop_strings(text, spelled, max_states=states)
    within: dict[str, Any] = {"max_states": states}
    if kind != "choices":
        within["max_seconds"] = 2 * seconds  # it is ended from outside
    return getattr(grammar, kind)(text, spelled, **within)
