"""The paths of the server, as a Starlette application."""

import asyncio
import hmac
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jspec.server import schemas
from jspec.server.answers import Spelling
from jspec.server.errors import APIError
from jspec.server.exchange import Exchange, Gone
from jspec.server.formats import ChatFormat, CompletionFormat, Format
from jspec.server.intake import Intake, Order
from jspec.server.jobs import Job, Piece
from jspec.server.metrics import CONTENT_TYPE, ServerMetrics
from jspec.server.responses import CLOSED, Finished, StreamedAnswer, body_of, error_of, refused
from jspec.server.scheduler import Scheduler

log = logging.getLogger("jspec.server")

_MAKERS = 4
"""Grammars that are made at once; others wait. One may take seconds."""


@dataclass(frozen=True)
class Served:
    """What a server is.

    Args:
        name: of the model, as requests write it.
        api_key: that clients have to bring; None: they need none.
        started: when, in seconds since 1970.
    """

    name: str
    api_key: str | None = None
    started: int = 0


class Service:
    """Answers requests with the rows of a scheduler.

    Args:
        served: what is served.
        intake: makes orders of requests.
        make_scheduler: is given where pieces are delivered.
        compiled: gives the number of programs that were compiled so far.
        write: is given a JSON line of each request.
    """

    def __init__(
        self,
        served: Served,
        intake: Intake,
        make_scheduler: Callable[[Callable[[list[tuple[Job, Piece]]], None]], Scheduler],
        compiled: Callable[[], int],
        write: Callable[[str], None],
    ):
        self._served = served
        self._intake = intake
        self.scheduler = make_scheduler(self._deliver)
        self.metrics = ServerMetrics(self.scheduler, served.name, compiled)
        self._write = write
        self._spelling = Spelling(intake.spelled, intake.target.tokenizer)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._makers = asyncio.Semaphore(_MAKERS)
        self._thread = threading.Thread(target=self._run, name="jspec-device", daemon=True)

    def application(self) -> Starlette:
        """The application, for an ASGI server."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._logged(self._models)),
                Route("/v1/models/{name:path}", self._logged(self._model)),
                Route("/v1/completions", self._logged(self._completions), methods=["POST"]),
                Route("/v1/chat/completions", self._logged(self._chat), methods=["POST"]),
            ],
            exception_handlers={HTTPException: refused},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, application: Starlette) -> AsyncIterator[None]:
        del application
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        yield
        self.scheduler.stop()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            self.scheduler.run()
        except BaseException:
            log.exception("the scheduler has stopped")
            raise

    def _deliver(self, pieces: list[tuple[Job, Piece]]) -> None:
        """From the scheduler's thread to the one of HTTP, once a turn."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_give, pieces)

    async def _health(self, request: Request) -> Response:
        del request
        return Response(status_code=200 if self._thread.is_alive() else 503)

    async def _metrics(self, request: Request) -> Response:
        del request
        return Response(self.metrics.shown(), media_type=CONTENT_TYPE)

    async def _models(self, request: Request) -> Response:
        self._check_key(request)
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        self._check_key(request)
        self._check_model(request.path_params["name"])
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._served.name,
            "object": "model",
            "created": self._served.started,
            "owned_by": "jspec",
            "max_model_len": self._intake.bounds.max_model_len,
        }

    async def _completions(self, request: Request) -> Any:
        asked = await self._asked(request, schemas.CompletionRequest)
        order = await self._made(self._intake.completion, asked)
        form = CompletionFormat(self._served.name, self._spelling, order.num_top)
        return await self._answer(request, asked, order, form)

    async def _chat(self, request: Request) -> Any:
        asked = await self._asked(request, schemas.ChatRequest)
        order = await self._made(self._intake.chat, asked)
        form = ChatFormat(
            self._served.name, self._spelling, order.num_top, order.function, order.reader
        )
        return await self._answer(request, asked, order, form)

    async def _asked(self, request: Request, kind: type[schemas.Asked]) -> schemas.Asked:
        """The checked request."""
        self._check_key(request)
        asked = schemas.parse(kind, await body_of(request))
        if isinstance(asked, schemas.Settings):
            self._check_model(asked.model)
            request.state.record["user"] = asked.user
        return asked

    async def _made(self, make: Callable[[Any], Order], asked: Any) -> Order:
        # In a thread: others are not to wait for a long prompt, nor for many large grammars.
        async with self._makers if asked.has_form else nullcontext():
            return await asyncio.to_thread(make, asked)

    async def _answer(
        self, request: Request, asked: schemas.Settings, order: Order, form: Format
    ) -> Any:
        exchange = Exchange(
            order, form, self.scheduler, self.metrics, self._intake.target.tokenizer
        )
        exchange.submit()
        request.state.exchange = exchange
        if asked.stream:
            options = asked.stream_options
            return StreamedAnswer(exchange, options is not None and options.include_usage)
        return JSONResponse(await exchange.whole(request.receive))

    def _logged(self, endpoint: Callable[[Request], Awaitable[Any]]) -> Callable[..., Any]:
        """An endpoint that answers errors in the API's shape, and writes a line per request."""

        async def run(request: Request) -> Any:
            began = time.monotonic()
            request.state.exchange = None
            request.state.record = {}
            try:
                response = await endpoint(request)
            except APIError as error:
                response = error_of(error)
                request.state.record["error"] = str(error)
            except (Gone, ClientDisconnect):
                response = Response(status_code=CLOSED)
            except Exception:
                log.exception("a request failed")
                response = error_of(APIError(500, "the server failed; its log says why"))
            return Finished(response, request, lambda status: self._say(request, began, status))

        return run

    def _say(self, request: Request, began: float, status: int) -> None:
        exchange: Exchange | None = request.state.exchange
        if exchange is not None:
            exchange.cancel()  # what is still running has nobody to write for
        line = {
            "time": round(time.time(), 3),
            "path": request.url.path,
            "status": status,
            "seconds": round(time.monotonic() - began, 6),
            "client": None if request.client is None else request.client.host,
            **{name: value for name, value in request.state.record.items() if value is not None},
            **({} if exchange is None else exchange.record()),
        }
        self._write(json.dumps(line))

    def _check_key(self, request: Request) -> None:
        if self._served.api_key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if not hmac.compare_digest(given.encode(), self._served.api_key.encode()):
            raise APIError(
                401, "the API key is wrong or missing; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )  # fmt: skip

    def _check_model(self, name: str) -> None:
        if name != self._served.name:
            raise APIError(
                404, f"model is {name!r:.80}; this server has {self._served.name!r}", "model",
                "model_not_found",
            )  # fmt: skip


def _give(pieces: list[tuple[Job, Piece]]) -> None:
    for job, piece in pieces:
        job.deliver(piece)
