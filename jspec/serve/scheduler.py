"""The scheduler decides each row's next work. Plain Python over a `Device`.

One thread runs it and owns the device. In each turn it lets rows go whose clients went away, reads
prompts into free rows, and lets all rows together write some rounds. A long prompt is read in
chunks, one a turn, so that running rows wait for a chunk and never for the whole.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jspec._validate.errors import InputError
from jspec.serve.free_rows import FreeRows
from jspec.serve.jobs import PROMPT, Delta, Executor, Job
from jspec.serve.prefixes import Prefixes
from jspec.types import Status

log = logging.getLogger("jspec.serve")

FAILED = "the server failed on this request; its log says why"
STOPPING = "the server is shutting down"


class Busy(Exception):
    """There is no room in the queue."""

    def __init__(self, seconds: int):
        super().__init__(f"the queue is full; try again in {seconds} s")
        self.seconds = seconds


@dataclass
class Figures:
    """Counters of the scheduler; read from other threads."""

    steps: int = 0
    step_seconds: float = 0.0
    """In calls of `Device.step`."""
    read_seconds: float = 0.0
    """In all other calls of the device."""
    host_seconds: float = 0.0
    """Between them, while rows were running."""
    prompt_tokens: int = 0
    """Tokens of all prompts that were begun."""
    reused_tokens: int = 0
    """Prompt tokens that need not be read."""


@dataclass
class _Reading:
    """A prompt that is being read."""

    job: Job
    place: int = 0
    """Its tokens that have been read."""
    arrival: Any = None
    """The state behind them."""
    boundary: int = 0
    """The prefix length at which the state is kept as well; 0: nowhere."""


class Scheduler:
    """Rows for jobs, in the order in which they came."""

    def __init__(
        self,
        device: Executor,
        deliver: Callable[[list[tuple[Job, Delta]]], None],
        *,
        max_waiting: int = 128,
        prefill_tokens: int = 256,
        capacity: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._device = device
        self._deliver = deliver
        self.max_waiting = max_waiting
        self._prefill_tokens = prefill_tokens
        self.prefixes = Prefixes(capacity)
        self._clock = clock
        self.figures = Figures()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._outstanding = 0
        self._waiting: deque[Job] = deque()
        self._reading: _Reading | None = None
        self._running: dict[int, Job] = {}
        self._free = FreeRows(device, self.prefixes, self._call)
        self._deltas: list[tuple[Job, Delta]] = []
        self.num_unfinished = 0
        """Jobs that `stop` ended."""
        self._job_seconds = 1.0
        """Of a job in its row, lately; for those who are told to come again."""

    @property
    def num_slots(self) -> int:
        return self._device.num_slots

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + (self._reading is not None)

    @property
    def most_jobs(self) -> int:
        """Jobs that can be here at a time."""
        return self._device.num_slots + self.max_waiting

    @property
    def has_room(self) -> bool:
        """Returns True if a job would be taken."""
        return not self._stopped and self._outstanding < self.most_jobs

    def submit(self, jobs: Sequence[Job]) -> None:
        """Adds jobs to the queue, all or none."""
        now = self._clock()
        with self._lock:
            if self._stopped or self._outstanding + len(jobs) > self.most_jobs:
                turns = self._outstanding / self._device.num_slots
                raise Busy(max(1, round(turns * self._job_seconds)))
            self._outstanding += len(jobs)
            for job in jobs:
                job.submitted_at = now
                self._waiting.append(job)
        self._wake.set()

    def cancel(self, job: Job) -> None:
        """Cancels a job: it gives no more deltas, and its row is free."""
        job.cancelled = True
        self._wake.set()

    def run(self) -> None:
        """Turns until `stop` is called; sleeps while there is nothing to do.

        However it ends, nobody is left to wait: what is here fails, and no more is taken.
        """
        try:
            while not self._stopped:
                self._wake.clear()
                if not self.turn():
                    self._wake.wait()
        finally:
            self.stop()
            for job in self._everything():
                self.num_unfinished += not job.cancelled
                self._end(job, Delta([], error=STOPPING))
            self._hand_over()

    def stop(self) -> None:
        """Ends `run` after its turn. What is still here fails."""
        with self._lock:
            self._stopped = True
        self._wake.set()

    def turn(self) -> bool:
        """Runs one turn. Returns whether there was anything to do."""
        began, before = time.perf_counter(), self._device_seconds
        self._drop_cancelled()
        self._admit()
        busy = bool(self._running)
        if busy:
            self._write()
        self._hand_over()
        if busy:
            spent = time.perf_counter() - began
            self.figures.host_seconds += spent - (self._device_seconds - before)
        return busy or self._reading is not None

    @property
    def _device_seconds(self) -> float:
        return self.figures.step_seconds + self.figures.read_seconds

    def _everything(self) -> list[Job]:
        reading = [] if self._reading is None else [self._reading.job]
        return [*self._running.values(), *reading, *self._waiting]

    def _drop_cancelled(self) -> None:
        for row in [row for row, job in self._running.items() if job.cancelled]:
            self._end(self._running.pop(row))
            self._free.give(row)
        if self._reading is not None and self._reading.job.cancelled:
            self._end(self._reading.job)
            self._reading = None
        if any(job.cancelled for job in self._waiting):
            for _ in range(len(self._waiting)):
                job = self._waiting.popleft()
                if job.cancelled:
                    self._end(job)
                else:
                    self._waiting.append(job)

    def _admit(self) -> None:
        """Reads prompts into free rows: `prefill_tokens` of them, or all if no row runs."""
        read = 0
        while self._free and (read < self._prefill_tokens or not self._running):
            if (reading := self._next()) is None:
                return
            try:
                read += self._read_chunk(reading)
            except Exception as error:  # one request's trouble is not another's
                self._reading = None
                self._end(reading.job, _error_delta(error))

    def _next(self) -> _Reading | None:
        """Returns the prompt at hand, or the next one in the queue."""
        if self._reading is None and self._waiting:
            job = self._waiting.popleft()
            job.started_at = self._clock()
            self._reading = _Reading(job)
        return self._reading

    def _look_up(self, reading: _Reading) -> None:
        """Finds what is known of a prompt."""
        job = reading.job
        size, state = self._free.find(job.prompt, job.salt)
        job.reused = size
        self.figures.prompt_tokens += len(job.prompt)
        self.figures.reused_tokens += size
        reading.place, reading.arrival = size, state
        reading.boundary = self.prefixes.boundary(job.prompt, size, job.shared, job.salt)

    def _read_chunk(self, reading: _Reading) -> int:
        """Reads on in the prompt at hand, and puts it into a row once all of it is read."""
        if not reading.place:
            self._look_up(reading)
        job, size = reading.job, len(reading.job.prompt)
        end = min(reading.place + self._prefill_tokens, size)
        if reading.place < reading.boundary:
            end = min(end, reading.boundary)
        tokens, earlier = job.prompt[reading.place : end], reading.arrival
        request = job.request if end == size else PROMPT
        reading.arrival = self._call(self._device.read, tokens, request, earlier, job.adapter)
        reading.place = end
        if end == reading.boundary:
            copied = self._call(self._device.copy, reading.arrival)
            self.prefixes.keep(job.prompt[:end], copied, job.salt)
        if end == size:
            row = self._free.take()
            try:
                self._call(self._device.insert, row, reading.arrival)
            except Exception as error:  # the rows went into it, and did not come back
                self._start_over(error)
                raise
            self._reading = None
            self._running[row] = job
        return len(tokens)

    def _write(self) -> None:
        """Runs some rounds of all rows."""
        try:
            self._free.clear()
        except Exception as error:
            self._start_over(error)
            return
        began = time.perf_counter()
        try:
            output = self._device.step(waiting=bool(self._waiting))
        except Exception as error:
            self._start_over(error)
            return
        finally:
            self.figures.step_seconds += time.perf_counter() - began
            self.figures.steps += 1
        now = self._clock()
        running = list(self._running.items())
        deltas = self._device.deltas(output, list(self._running))
        for (row, job), delta in zip(running, deltas, strict=True):
            if job.request.logprobs is None:  # the engine keeps those of all rows
                delta = replace(delta, logprobs=None)
            job.written += delta.tokens
            if job.first_at is None and delta.tokens:
                job.first_at = now
            if delta.is_last:
                del self._running[row]
                self._free.give(row, _goes_on_from(job, delta), job.salt)
                self._end(job, delta)
            elif delta.tokens and not job.cancelled:
                self._deltas.append((job, delta))

    def _start_over(self, error: Exception) -> None:
        """Fails all running jobs, since the device has lost its state; others are not hurt."""
        log.exception("the device failed")
        for job in self._running.values():
            self._end(job, _error_delta(error))
        self._running.clear()
        self.prefixes.clear()
        self._device.reset()
        self._free.reset()

    def _end(self, job: Job, delta: Delta | None = None) -> None:
        """Counts a job as gone, and gives its last delta unless nobody waits for it."""
        job.ended_at = self._clock()
        if job.started_at is not None:
            seconds = job.ended_at - job.started_at
            self._job_seconds += (seconds - self._job_seconds) / 8
        with self._lock:
            self._outstanding -= 1
        if delta is not None and not job.cancelled:
            self._deltas.append((job, delta))

    def _hand_over(self) -> None:
        if self._deltas:
            deltas, self._deltas = self._deltas, []
            self._deliver(deltas)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.figures.read_seconds += time.perf_counter() - began


def _goes_on_from(job: Job, delta: Delta) -> Sequence[int]:
    """Returns the text that a row keeps for a next turn; () if there is none."""
    is_complete = delta.error is None and delta.status in (Status.EOS, Status.LIMIT)
    return (*job.prompt, *job.written) if job.goes_on and is_complete else ()


def _error_delta(error: Exception) -> Delta:
    """Returns what the client is told of an error: what was wrong with its input, and no more."""
    if isinstance(error, InputError):
        return Delta([], error=str(error), refused=True)
    log.error("a request failed", exc_info=error)
    return Delta([], error=FAILED)
