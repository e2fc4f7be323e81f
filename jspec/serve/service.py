"""The paths of the server, as a Starlette application."""

import asyncio
import hmac
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jspec.models import reasoning
from jspec.serve import schemas
from jspec.serve.answers import Spelling
from jspec.serve.errors import APIError
from jspec.serve.formats import ChatFormat, CompletionFormat, Format
from jspec.serve.jobs import Delta, Job
from jspec.serve.metrics import CONTENT_TYPE, ServerMetrics
from jspec.serve.request_parser import ParsedRequest, RequestParser
from jspec.serve.response_stream import Gone, ResponseStream, departure
from jspec.serve.responses import (
    CLOSED,
    Finished,
    StreamedAnswer,
    body_of,
    drain,
    error_of,
    refuse,
)
from jspec.serve.scheduler import Scheduler
from jspec.serve.workers import GivenUp, Patience, Workers

log = logging.getLogger("jspec.serve")

_READERS = 8
"""Requests that are read at a time: others are not to wait for a long prompt."""
_LONG_BYTES = 2**16
_LONG_READERS = 2
"""Parsers of longer bodies, each of which takes Python's lock for longer than a round."""
_STEP_SECONDS = 10.0
"""The longest wait for the device's thread at the end."""
_AT_ONCE_SECONDS = 0.05
_WRONG_KEY = 401
_LONGEST = 200
"""Letters of a path in the log."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Served:
    """A server's parts."""

    name: str
    api_key: str | None = None
    """None: anybody may ask."""
    started: int = 0
    adapters: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Model names that requests may give; the index of an adapter is its number."""
        return self.name, *self.adapters


class Service:
    """Answers requests with the rows of a scheduler."""

    def __init__(
        self,
        served: Served,
        parser: RequestParser,
        make_scheduler: Callable[[Callable[[list[tuple[Job, Delta]]], None]], Scheduler],
        compiled: Callable[[], int],
        write: Callable[[str], None],
        at_end: Callable[[], None] = lambda: None,
    ):
        self._served = served
        self._parser = parser
        self.scheduler = make_scheduler(self._deliver)
        limits = parser.limits
        self._readers = Workers(_READERS, self.scheduler.most_jobs, limits.form_seconds)
        self._long_readers = Workers(_LONG_READERS, self.scheduler.most_jobs, limits.form_seconds)
        self._makers = Workers(limits.forms, limits.form_queue, limits.form_seconds)
        self._workers = {
            "reading": self._readers,
            "long_reading": self._long_readers,
            "forms": self._makers,
        }
        self.metrics = ServerMetrics(self.scheduler, served.name, compiled, self._workers)
        self._write = write
        self._at_end = at_end
        self._spelling = Spelling(parser.spelled, parser.target.tokenizer)
        self._vocabulary = reasoning.readable(parser.target.tokenizer)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="jspec-device", daemon=True)

    def application(self) -> Starlette:
        """Returns the application, for an ASGI server."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._log(self._models)),
                Route("/v1/models/{name:path}", self._log(self._model)),
                Route("/v1/completions", self._log(self._completions), methods=["POST"]),
                Route("/v1/chat/completions", self._log(self._chat), methods=["POST"]),
            ],
            exception_handlers={HTTPException: refuse},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, application: Starlette) -> AsyncIterator[None]:
        del application
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        yield
        self.scheduler.stop()
        for some in self._workers.values():
            some.close()
        self._parser.forms.maker.close()
        ended = time.monotonic() + _STEP_SECONDS
        while self._thread.is_alive() and time.monotonic() < ended:
            await asyncio.sleep(0.01)
        # Here, and not when all has ended: a thread may be at work that nothing can end.
        if self._thread.is_alive():
            log.error("the device did not come back; what its drafter learnt is not kept")
        else:
            self._at_end()

    @property
    def is_working(self) -> bool:
        """True while a thread works on a request that nobody waits for any longer."""
        return self._thread.is_alive() or any(some.num_busy for some in self._workers.values())

    def _run(self) -> None:
        try:
            self.scheduler.run()
        except BaseException:
            log.exception("the scheduler has stopped")
            raise

    def _deliver(self, deltas: list[tuple[Job, Delta]]) -> None:
        """Passes deltas from the scheduler's thread to HTTP's, once per turn."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_give, deltas)

    async def _health(self, request: Request) -> Response:
        del request
        admits = self.scheduler.has_room and self._readers.has_room
        return Response(status_code=200 if self._thread.is_alive() and admits else 503)

    async def _metrics(self, request: Request) -> Response:
        del request
        return Response(self.metrics.render(), media_type=CONTENT_TYPE)

    async def _models(self, request: Request) -> Response:
        self._check_key(request)
        return JSONResponse(
            {"object": "list", "data": [self._card(name) for name in self._served.names]}
        )

    async def _model(self, request: Request) -> Response:
        self._check_key(request)
        self._check_model(name := request.path_params["name"])
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._served.started,
            "owned_by": "jspec",
            "parent": None if name == self._served.name else self._served.name,
            "max_model_len": self._parser.max_model_len,
        }

    async def _completions(self, request: Request) -> Any:
        fields, generation = await self._parse(
            request, schemas.CompletionRequest, self._parser.completion
        )
        form = CompletionFormat(fields.model, self._spelling, generation.num_top)
        return await self._answer(request, fields, generation, form)

    async def _chat(self, request: Request) -> Any:
        fields, generation = await self._parse(request, schemas.ChatRequest, self._parser.chat)
        form = ChatFormat(
            fields.model, self._spelling, generation.num_top, generation.function, generation.reader
        )
        return await self._answer(request, fields, generation, form)

    async def _parse(
        self,
        request: Request,
        kind: type[schemas.Asked],
        make: Callable[[schemas.Asked, Patience], ParsedRequest],
    ) -> tuple[schemas.Asked, ParsedRequest]:
        """Returns the checked request, and what is made of it."""
        self._check_key(request)
        body = await body_of(request)

        def read(patience: Patience) -> tuple[schemas.Asked, ParsedRequest]:
            fields = schemas.parse(kind, body, self._parser.max_model_len)
            if isinstance(fields, schemas.SamplingParams):
                self._check_model(fields.model)
                request.state.record["user"] = fields.user
            self._check_answers(fields)
            return fields, make(fields, patience)

        readers = self._long_readers if len(body) > _LONG_BYTES else self._readers
        fields, generation = await _unless_gone(request, readers.run(read))
        forms, spec = self._parser.forms, generation.spec
        if (automata := forms.find(spec)) is None:
            work = self._makers.run(lambda patience: forms.make(spec, patience))
            automata = await _unless_gone(request, work)
        salt: Hashable = generation.salt
        generation = generation.with_automata(automata)
        if self._served.adapters and isinstance(fields, schemas.SamplingParams):
            number = self._served.names.index(fields.model)
            # Text that an adapter has read is useless to others.
            salt = number, salt
            generation = replace(generation, adapter=number)
        return fields, replace(generation, salt=salt)

    def _check_answers(self, fields: Any) -> None:
        count = fields.n * (
            len(fields.prompts) if isinstance(fields, schemas.CompletionRequest) else 1
        )
        if count > self.scheduler.most_jobs:
            raise APIError(
                400, f"the request asks for {count} answers, and the server takes "
                f"{self.scheduler.most_jobs} at a time; ask for fewer", "n",
            )  # fmt: skip

    async def _answer(
        self,
        request: Request,
        fields: schemas.SamplingParams,
        generation: ParsedRequest,
        form: Format,
    ) -> Any:
        stream = ResponseStream(generation, form, self.scheduler, self.metrics, self._vocabulary)
        stream.submit()
        request.state.stream = stream
        if fields.stream:
            options = fields.stream_options
            return StreamedAnswer(stream, options is not None and options.include_usage)
        return JSONResponse(await stream.whole(request.receive))

    def _log(self, endpoint: Callable[[Request], Awaitable[Any]]) -> Callable[..., Any]:
        """Returns an endpoint that answers errors in the API's shape and logs requests."""

        async def run(request: Request) -> Any:
            began = time.monotonic()
            request.state.stream = None
            request.state.record = {}
            try:
                response = await endpoint(request)
            except APIError as error:
                if error.status == _WRONG_KEY:
                    await drain(request)
                self.metrics.count_error(error)
                response = error_of(error)
                request.state.record["error"] = str(error)
            except (Gone, GivenUp, ClientDisconnect):
                response = Response(status_code=CLOSED)
            except Exception:
                log.exception("a request failed")
                failed = APIError(500, "the server failed; its log says why")
                self.metrics.count_error(failed)
                response = error_of(failed)
            return Finished(response, request, lambda status: self._say(request, began, status))

        return run

    def _say(self, request: Request, began: float, status: int) -> None:
        stream: ResponseStream | None = request.state.stream
        if stream is not None:
            stream.cancel()  # what is still running has nobody to write for
        line = {
            "time": round(time.time(), 3),
            "path": request.url.path[:_LONGEST],
            "status": status,
            "seconds": round(time.monotonic() - began, 6),
            "client": None if request.client is None else request.client.host,
            **{name: value for name, value in request.state.record.items() if value is not None},
            **({} if stream is None else stream.record()),
        }
        self._write(json.dumps(line))

    def _check_key(self, request: Request) -> None:
        key = self._served.api_key
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        if key is not None and not hmac.compare_digest(token.encode(), key.encode()):
            raise APIError(
                _WRONG_KEY, "the API key is wrong or missing; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )  # fmt: skip

    def _check_model(self, name: str) -> None:
        if name not in self._served.names:
            names = " and ".join(map(repr, self._served.names))
            raise APIError(
                404, f"model is {name!r:.80}; this server has {names:.400}", "model",
                "model_not_found",
            )  # fmt: skip


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns what some work comes to; it is given up where the client goes away."""
    doing = asyncio.ensure_future(work)
    try:
        # Most of it is done at once, before anybody goes away.
        await asyncio.wait({doing}, timeout=_AT_ONCE_SECONDS)
        if not doing.done():
            watch = asyncio.ensure_future(departure(request.receive))
            try:
                await asyncio.wait({doing, watch}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watch.cancel()
        if not doing.done():
            raise Gone
        return doing.result()
    finally:
        doing.cancel()
        del doing  # what it raised knows this frame


def _give(deltas: list[tuple[Job, Delta]]) -> None:
    for job, delta in deltas:
        job.deliver(delta)
