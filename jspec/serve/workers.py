"""Bounded work on threads next to the event loop, in the order of its coming."""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from jspec.serve.errors import APIError

Made = TypeVar("Made")


class GivenUp(Exception):
    """Nobody waits for the work any longer."""


class Patience:
    """A deadline that the work checks from time to time."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._ends = time.monotonic() + seconds
        self._given_up = False

    def give_up(self) -> None:
        """Ends the work at its next look. From any thread."""
        self._given_up = True

    @property
    def left(self) -> float:
        """The seconds that are left."""
        if self._given_up:
            raise GivenUp
        return self._ends - time.monotonic()

    def check(self, what: str) -> None:
        """Goes on, or not."""
        if self.left <= 0:
            raise APIError(400, out_of_time(what, self.seconds), code="took_too_long")


def out_of_time(what: str, seconds: float) -> str:
    """Returns the sentence for work that was ended."""
    return (
        f"{what} took more than {seconds:g} s; make it smaller, or start the server with more "
        "--form-seconds"
    )


class Workers:
    """Threads that work for requests, and that nobody waits for when the server ends.

    Python waits for the threads of `asyncio.to_thread` at the end of a program, however long they
    take. Only the event loop's thread calls this.
    """

    def __init__(self, limit: int, most_waiting: int, seconds: float):
        self._most, self._most_waiting, self._seconds = limit, most_waiting, seconds
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_threads = 0
        self._num_busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def num_busy(self) -> int:
        return self._num_busy

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """True if more work would be admitted."""
        return len(self._waiting) < self._most_waiting

    async def run(self, work: Callable[[Patience], Made]) -> Made:
        """Does some work in a thread, in its turn.

        A cancelled call gives its work up. It counts until it has ended.
        """
        await self._enter()
        loop = asyncio.get_running_loop()
        waited: list[asyncio.Future[Made]] = [loop.create_future()]
        patience = Patience(self._seconds)

        def settle(result: Any, error: BaseException | None) -> None:
            done = waited.pop() if waited else None  # nobody waits any longer
            if done is not None and not done.done():
                if error is None:
                    done.set_result(result)
                else:
                    done.set_exception(error)
            self._leave()

        def run() -> None:
            result = error = None
            try:
                result = work(patience)
            except (APIError, GivenUp) as caught:
                error = caught.with_traceback(None)  # which has all that was read
            except BaseException as caught:
                error = caught
            with suppress(RuntimeError):  # the server has ended in between
                loop.call_soon_threadsafe(settle, result, error)
            del result, error  # of an error: it knows this frame, which would know it

        if self._num_threads < self.num_busy:
            try:
                threading.Thread(target=self._work, name="jspec-request", daemon=True).start()
                self._num_threads += 1
            except RuntimeError:  # the system has no more threads
                self._leave()
                raise self._overload() from None
        self._tasks.put(run)
        try:
            return await waited[0]
        except asyncio.CancelledError:
            patience.give_up()
            raise
        finally:
            waited.clear()  # what it raised knows this frame

    def close(self) -> None:
        """Ends the threads that are not at work."""
        for _ in range(self._num_threads):
            self._tasks.put(None)

    def _work(self) -> None:
        """Works in a thread, which goes on: starting one takes longer than most work."""
        while (task := self._tasks.get()) is not None:
            task()
            del task  # which holds what it was given

    async def _enter(self) -> None:
        """Waits for a turn."""
        if self._num_busy < self._most:
            self._num_busy += 1
            return
        if not self.has_room:
            raise self._overload()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():  # it came at the same time
                self._leave()
            raise

    def _leave(self) -> None:
        """Gives the place to who waits, or back."""
        while self._waiting:
            # One that left in this pass of the loop has not taken its turn out yet.
            if not (turn := self._waiting.popleft()).done():
                turn.set_result(None)
                return
        self._num_busy -= 1

    def _overload(self) -> APIError:
        wait = str(max(1, round(self._seconds / 2)))
        return APIError(
            429, f"too many requests are being read or wait for their form; try again in {wait} s",
            code="server_busy", headers={"Retry-After": wait},
        )  # fmt: skip
