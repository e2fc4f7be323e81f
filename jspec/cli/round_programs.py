"""Programs of a conversation's rounds: a small one first, later the whole one."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jspec.sessions.batches import Group, Runner
    from jspec.types import State

_TURN = 0.0005
"""Seconds of Python that a thread has before others may go on, a tenth of Python's own."""


class RoundPrograms:
    """Programs that read a prompt and run its rounds, compiled in the background."""

    def __init__(self, runner: "Runner"):
        self._runner = runner
        self._capacity: int | None = None
        """The size of the cache that programs are compiled for; None if for none."""
        self._first: Future[None] | None = None
        """Of the prompt and the first rounds, until somebody has waited for it."""
        self._whole: Future[None] | None = None
        """Of the rounds that draft."""
        self._said = False
        self._is_asked = False
        """True if somebody waits for the first words."""
        self._answered = threading.Event()
        """Set when they are there."""

    def prepare(self, group: "Group", capacity: int) -> None:
        """Begins to compile what such a prompt needs, in a thread of its own."""
        first, full = Future[None](), Future[None]()

        def work() -> None:
            try:
                arguments = self._runner.arguments(group) | {"capacity": capacity}
                policy = arguments["policy"]
                first_rounds = arguments | {"policy": _first_policy(policy)}
                shapes = compile_ahead(arguments, first_rounds)
                first.set_result(None)
                if self._is_asked:
                    self._answered.wait()  # tracing would take half of Python from them
                if first_rounds["policy"] != policy:
                    with _short_turns():
                        compile_rounds(arguments, shapes)
                full.set_result(None)
            except Exception as error:  # of an answer
                for future in (first, full):
                    if not future.done():
                        future.set_exception(error)

        self._capacity, self._first, self._whole = capacity, first, full
        threading.Thread(target=work, name="jspec-ahead", daemon=True).start()

    def wait(self) -> None:
        """Waits for the programs of a first answer; what went wrong with them is raised once."""
        if self._first is None:
            return
        self._is_asked = True
        wait([self._first])  # Ctrl-C leaves it to the next answer
        first, self._first = self._first, None
        if first.exception() is not None:
            self._capacity, self._whole = None, None  # what is needed is compiled where it is
        first.result()

    def finish(self) -> None:
        """Waits for all programs, where no answer is waited for; raises what went wrong."""
        self.go_on()
        self.wait()
        if self._whole is not None:
            self._whole.result()

    def rounds(self, group: "Group", capacity: int) -> Callable[["State"], "State"]:
        """Returns what gives the state after a round, by the best program that is there."""
        import jspec

        arguments = self._runner.arguments(group)
        names = "drafter", "drafter_params", "policy_params"
        drafting = {name: arguments[name] for name in names}
        step = partial(jspec.step, arguments["model"], arguments["params"], **drafting)
        policy, full = arguments["policy"], self._whole
        if capacity != self._capacity or full is None:
            return partial(step, policy=policy)

        def after(state: "State") -> "State":
            ready = full.done() and full.exception() is None
            return step(state, policy=policy if ready else _first_policy(policy))

        return after

    def go_on(self) -> None:
        """Says that the first words are there, or will not come."""
        self._answered.set()

    def complaint(self) -> str | None:
        """Returns what went wrong with the whole program, said once; None if nothing did."""
        full = self._whole
        if self._said or full is None or not full.done() or full.exception() is None:
            return None
        self._said = True
        return (
            "the program that drafts could not be made, and answers are written without it, in "
            f"the same words ({full.exception()})"
        )

    def close(self) -> None:
        """Ends what is compiled for an answer that nobody waits for any more."""
        if self._whole is None or self._whole.done():
            return
        if sys.stdin.isatty():
            # XLA cannot be told to stop, and Python aborts if it ends before XLA does.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        self.go_on()
        wait([self._whole])


def compile_ahead(arguments: dict[str, Any], first_rounds: dict[str, Any]) -> "State":
    """Compiles what reads a prompt and the first rounds; returns the shapes of their state."""
    import jax

    import jspec

    weights = {name: arguments[name] for name in ("params", "drafter_params", "policy_params")}
    shapes = jax.eval_shape(lambda weights: jspec.prefill(**arguments | weights), weights)
    rows = [replace(row, max_tokens=0) for row in arguments["request"]]
    call: dict[str, Any] = arguments | {"request": rows}
    with ThreadPoolExecutor(1) as other:  # compiling leaves Python to others
        future = other.submit(lambda: jax.block_until_ready(jspec.prefill(**call).root))
        compile_rounds(first_rounds, shapes)
        future.result()
    return shapes


def compile_rounds(arguments: dict[str, Any], shapes: "State") -> None:
    """Compiles the rounds of such a state: of one whose rows have ended, none runs."""
    import jax
    import jax.numpy as jnp

    import jspec
    from jspec.types import Status

    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    state = replace(state, status=jnp.full_like(state.status, int(Status.LIMIT)))
    names = "drafter", "drafter_params", "policy", "policy_params"
    drafting = {name: arguments[name] for name in names}
    model, params = arguments["model"], arguments["params"]
    jax.block_until_ready(jspec.step(model, params, state, **drafting).root)


@contextmanager
def _short_turns() -> Iterator[None]:
    """Yields a context in which threads that run Python take turns often.

    A round asks for Python a dozen times, and waits each time for the thread that traces.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _first_policy(policy: Any) -> Any:
    """Returns the policy of first rounds: plain decoding, if that is one of its widths."""
    from jspec.policies.fixed_width import FixedWidth

    return FixedWidth(0) if 0 in policy.widths else policy
