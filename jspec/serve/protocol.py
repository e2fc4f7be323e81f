"""HTTP as uvicorn reads it, within bounds; errors have the API's shape."""

import asyncio
import json
from collections import defaultdict
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from jspec.serve.errors import APIError
from jspec.serve.limits import ServerLimits

_PHRASES = {400: "Bad Request", 408: "Request Timeout", 429: "Too Many Requests"}


class Connections:
    """The connections of each address.

    Where an address has all that it may have, the one gives way that has waited longest for a
    request's head; if there is none, the new one does.
    """

    def __init__(self, most: int):
        self.most = most
        self._all: defaultdict[str, dict[Any, None]] = defaultdict(dict)
        self._waiting: defaultdict[str, dict[Any, None]] = defaultdict(dict)

    def admit(self, address: str, connection: Any) -> Any:
        """Counts a new connection, and returns the one that is to be closed; None: none is."""
        self._all[address][connection] = None
        if len(self._all[address]) <= self.most:
            return None
        return next(iter(self._waiting[address]), connection)

    def waits(self, address: str, connection: Any) -> None:
        """Registers a connection that has no whole request head."""
        self._waiting[address].setdefault(connection)

    def is_asked(self, address: str, connection: Any) -> None:
        """Counts a request that has begun."""
        self._waiting[address].pop(connection, None)

    def lose(self, address: str, connection: Any) -> None:
        """Forgets a connection that has ended."""
        for known in (self._all, self._waiting):
            known[address].pop(connection, None)
            if not known[address]:
                del known[address]


def protocol(limits: ServerLimits) -> Any:
    """Returns the protocol of a server's connections.

    uvicorn chooses its own by what is installed; each of them has these methods.
    """
    connections = Connections(limits.connections)
    base: Any = AutoHTTPProtocol

    class Protocol(base):
        """Gives the head of a request a time, and each address a number of connections."""

        _ends: asyncio.TimerHandle | None = None
        _address = ""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._address = self.client[0] if self.client else ""
            leaving = connections.admit(self._address, self)
            self._wait()
            if leaving is not None:
                leaving.refuse(
                    429, f"this address has {connections.most} connections already, all that it "
                    "may have; close some, or start the server with more --max-connections",
                )  # fmt: skip

        def connection_lost(self, exc: Exception | None) -> None:
            self._go_on()
            connections.lose(self._address, self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._wait()
            else:
                self._go_on()

        def send_400_response(self, msg: str) -> None:
            del msg  # uvicorn's words
            self.refuse(400, "this is not a request of HTTP/1.1; is the address one of http:// ?")

        def refuse(self, status: int, said: str) -> None:
            """Says why the connection ends, and ends it."""
            body = json.dumps(APIError(status, said).body).encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self._go_on()
            self.transport.write(head.encode() + body)
            self.transport.close()

        def _wait(self) -> None:
            """Starts the time limit of a request's head, unless it has begun."""
            connections.waits(self._address, self)
            if self._ends is None:
                self._ends = self.loop.call_later(limits.header_seconds, self._too_late)

        def _go_on(self) -> None:
            connections.is_asked(self._address, self)
            if self._ends is not None:
                self._ends.cancel()
                self._ends = None

        def _too_late(self) -> None:
            self._ends = None
            if self.cycle is None or self.cycle.response_complete:
                self.refuse(
                    408, f"the head of a request has not come within {limits.header_seconds} s; "
                    "send it at once, or start the server with more --header-seconds",
                )  # fmt: skip

    return Protocol
