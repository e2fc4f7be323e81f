"""Request bodies and responses: whole, streamed and refused."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from jspec.serve.errors import APIError
from jspec.serve.response_stream import Gone, ResponseStream

MOST_BYTES = 4 * 2**20
"""Of a body."""
BODY_SECONDS = 30.0
"""A body that takes longer is given up."""
CLOSED = 499
"""The status in logs when a client left before its answer was whole; nginx's number."""


class StreamedAnswer:
    """A response that is sent delta by delta."""

    status_code = 200

    def __init__(self, stream: ResponseStream, with_usage: bool):
        self._stream = stream
        self._with_usage = with_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._stream.stream(receive, send, self._with_usage)


class Finished:
    """A response, and what is done when it has been sent or cannot be."""

    def __init__(self, response: Any, request: Request, then: Callable[[int], None]):
        self._response = response
        self._request = request
        self._then = then

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = self._response.status_code
        try:
            await self._response(scope, receive, send)
        except Gone:
            status = CLOSED
        except BaseException:
            status = 500
            raise
        finally:
            self._then(status)


async def body_of(request: Request) -> bytes:
    """Returns the body of a request."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                # What is too much is read to its end: a client that still writes reads no answer.
                if size <= MOST_BYTES:
                    parts.append(part)
    except TimeoutError:
        raise APIError(
            408, f"the body has not come within {BODY_SECONDS:g} s; send it at once"
        ) from None
    if size > MOST_BYTES:
        raise APIError(
            413, f"the body has {size} bytes and {MOST_BYTES} are allowed; shorten it",
            code="request_too_large",
        )  # fmt: skip
    return b"".join(parts)


async def drain(request: Request) -> None:
    """Reads what is left of a body: a client that still writes reads no answer."""
    with suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            async for _ in request.stream():
                pass


def error_of(error: APIError) -> JSONResponse:
    """Returns the answer that tells a client of an error."""
    return JSONResponse(error.body, error.status, error.headers)


async def refuse(request: Request, error: Exception) -> Response:
    """Returns the answer to a path or a method that is not there."""
    assert isinstance(error, HTTPException)
    reasons = {404: "there is no such path", 405: "the path has no such method"}
    what = reasons.get(error.status_code, str(error.detail))
    message = f"{request.method} {request.url.path:.100}: {what}"
    await drain(request)
    return error_of(APIError(error.status_code, message, headers=error.headers))
