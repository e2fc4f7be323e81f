"""One request while it is answered: its jobs, what they have written, and who waits for it."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import replace
from functools import partial
from typing import Any

from jspec.costs.metrics import Metrics
from jspec.serve import formats
from jspec.serve.answers import Answer
from jspec.serve.errors import APIError
from jspec.serve.formats import Format
from jspec.serve.jobs import Delta, Job
from jspec.serve.metrics import ServerMetrics
from jspec.serve.request_parser import ParsedRequest
from jspec.serve.scheduler import Busy, Scheduler

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SLOW_SECONDS = 60.0
"""A client that takes nothing for so long is gone."""


class Gone(Exception):
    """The client went away."""


class ResponseStream:
    """One request while it is answered."""

    def __init__(
        self,
        request: ParsedRequest,
        form: Format,
        scheduler: Scheduler,
        metrics: ServerMetrics,
        vocabulary: Any,
    ):
        self._form = form
        self._scheduler = scheduler
        self._metrics = metrics
        self._deltas: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue()
        self.jobs: list[Job] = []
        self.answers: list[Answer] = []
        for prompt in request.prompts:
            for row in range(request.num_answers):
                index = len(self.jobs)
                several = request.num_answers > 1
                # Without a seed of its own a request does not repeat itself, nor do its prompts.
                number = row if request.has_seed else index
                job = Job(
                    prompt,
                    replace(request.request, row_id=number),
                    partial(_put, self._deltas, index),
                    shared=len(prompt) - 1 if several else 0,
                    goes_on=request.goes_on,
                    salt=request.salt,
                    adapter=request.adapter,
                )
                self.jobs.append(job)
                stops = request.request.stop_token_ids
                self.answers.append(Answer(index, vocabulary, prompt, stops, request.marks))
        self._last: list[float | None] = [None] * len(self.jobs)
        self._prompts = request.prompts

    def submit(self) -> None:
        """Puts the jobs into the queue."""
        try:
            self._scheduler.submit(self.jobs)
        except Busy as busy:
            headers = {"Retry-After": str(busy.seconds)}
            raise APIError(429, str(busy), code="server_busy", headers=headers) from None

    def cancel(self) -> None:
        """Frees the rows that still write, since nobody waits any longer."""
        for job, answer in zip(self.jobs, self.answers, strict=True):
            if not answer.is_done:
                self._scheduler.cancel(job)

    async def whole(self, receive: Receive) -> dict[str, Any]:
        """Returns all answers at once."""
        async for answer, _, _ in self._arriving(receive, show=False):
            if answer.error is not None:
                self.cancel()
                raise _error(answer)
        return self._form.whole(self.answers, self._usage())

    async def stream(self, receive: Receive, send: Send, with_usage: bool) -> None:
        """Sends answers delta by delta, as server-sent events."""

        async def give(message: Message) -> None:
            try:
                async with asyncio.timeout(SLOW_SECONDS):
                    await send(message)
            except (TimeoutError, OSError):
                raise Gone from None

        async def event(data: str) -> None:
            body = f"data: {data}\n\n".encode()
            await give({"type": "http.response.body", "body": body, "more_body": True})

        async def chunk(choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> None:
            await event(_json(self._form.chunk(choices, usage)))

        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await give({"type": "http.response.start", "status": 200, "headers": headers})
        firsts = [self._form.first(answer) for answer in self.answers]
        if opening := [first for first in firsts if first is not None]:
            await chunk(opening, None)
        async for answer, text, delta in self._arriving(receive, show=True):
            if answer.error is not None:
                self.cancel()
                await event(_json(_error(answer).body))
                break
            if text or delta.is_last or delta.logprobs is not None:
                choice = self._form.delta(answer, text, delta.tokens, delta.logprobs)
                await chunk([choice], None)
        else:
            if with_usage:
                await chunk([], self._usage())
        await event("[DONE]")
        await give({"type": "http.response.body", "body": b"", "more_body": False})

    async def _arriving(
        self, receive: Receive, show: bool
    ) -> AsyncIterator[tuple[Answer, str, Delta]]:
        """Yields pieces as they come, with the answer that they belong to and their text."""
        watch = asyncio.ensure_future(departure(receive))
        watch.add_done_callback(lambda _: self._deltas.put_nowait(None))
        try:
            pending = len(self.jobs)
            while pending:
                arrived = await self._deltas.get()
                if arrived is None:
                    raise Gone
                index, delta = arrived
                answer = self.answers[index]
                text = answer.add(delta, show)
                self._count(index, answer, delta)
                pending -= delta.is_last
                yield answer, text, delta
        finally:
            watch.cancel()

    def _count(self, index: int, answer: Answer, delta: Delta) -> None:
        now = time.monotonic()
        if delta.tokens:
            last, self._last[index] = self._last[index], now
            self._metrics.wrote(len(delta.tokens), None if last is None else now - last)
        if delta.is_last:
            reason = answer.finish_reason or "error"
            self._metrics.count_answer(self.jobs[index], len(answer.tokens), reason, answer.rounds)

    def _usage(self) -> dict[str, Any]:
        count = sum(len(answer.tokens) for answer in self.answers)
        # As the API counts: a prompt once, however many answers it has.
        each = len(self.jobs) // len(self._prompts)
        reused = sum(job.reused for job in self.jobs[::each])
        return formats.usage(sum(map(len, self._prompts)), count, reused)

    def record(self) -> dict[str, Any]:
        """Returns what the log says of it."""
        jobs = self.jobs
        began = min(job.submitted_at for job in jobs)
        started = [job.started_at for job in jobs if job.started_at is not None]
        firsts = [job.first_at for job in jobs if job.first_at is not None]
        rounds = sum((answer.rounds for answer in self.answers), Metrics())
        usage = self._usage()
        return {
            "id": self._form.id,
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "finish_reasons": [answer.finish_reason for answer in self.answers],
            "queue_seconds": round(min(started) - began, 6) if started else None,
            "first_token_seconds": round(min(firsts) - began, 6) if firsts else None,
            "tokens_per_round": round(rounds.tokens_per_round, 3),
        }


def _put(deltas: asyncio.Queue[tuple[int, Delta] | None], index: int, delta: Delta) -> None:
    """Holds the queue alone: a job with its stream would be a reference cycle."""
    deltas.put_nowait((index, delta))


def _error(answer: Answer) -> APIError:
    """Returns why an answer failed: 400 where the request is at fault."""
    return APIError(400 if answer.refused else 500, answer.error or "")


async def departure(receive: Receive) -> None:
    """Returns when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Some clients read lines as Python splits them, and would cut an event there.
    return re.sub("[\x85\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)
