"""Clients by their keys, each with its own rate and queue limit."""

import hmac
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError
from jspec.models.huggingface import config_json
from jspec.serve.errors import APIError


@dataclass(frozen=True)
class Client:
    """One who may ask."""

    name: str = ""
    key: str = ""
    requests_per_minute: int | None = None
    answers: int | None = None


_MOST = 10**9
NOBODY = Client()
"""The client of a server without keys."""


def read(file: Path) -> tuple[Client, ...]:
    """Returns the clients of a file: a JSON object of their names, with the fields of each."""
    found = []
    listed = config_json.read(file)
    if twice := _twice(file):
        raise InputError(f"{file} has {twice!r:.60} twice; give each client one entry")
    for name in listed.values:
        entry = listed.part(name)
        own = {one.name for one in fields(Client)} - {"name"}
        if wrong := sorted(set(entry.values) - own):
            raise InputError(
                f"{name!r:.60} in {file} has {wrong[0]!r:.60}; it has {', '.join(sorted(own))}"
            )
        if not name or not (key := entry.text("key")):
            raise InputError(f"{name!r:.60} in {file} has no name or no key; give it both")
        check_key(f"the key of {name!r:.60} in {file}", key)
        bounds: dict[str, Any] = {
            bound: None if entry.get(bound) is None else entry.count(bound, most=_MOST)
            for bound in ("requests_per_minute", "answers")
        }
        found.append(Client(name, key, **bounds))
    if not found:
        raise InputError(f"{file} has no client; write {{NAME: {{'key': ..}}}}, or leave it out")
    if len({client.key for client in found}) < len(found):
        raise InputError(f"two clients in {file} have one key; give each its own")
    return tuple(found)


def check_key(what: str, key: str) -> None:
    """Refuses a key that no header of HTTP brings."""
    if not (key.isascii() and key.isprintable()) or key != key.strip():
        raise InputError(f"{what} is {key!r:.40}; pass printable ASCII, without spaces around it")


def _twice(file: Path) -> str | None:
    """Returns a name that the object of a file has twice, of which JSON keeps the last."""
    pairs = json.loads(file.read_text("utf-8"), object_pairs_hook=lambda pairs: pairs)
    names = Counter(name for name, _ in pairs)
    return next((name for name, count in names.items() if count > 1), None)


class Clients:
    """Remaining rate and queue room of each client. Only the event loop's thread calls it."""

    def __init__(self, clients: Iterable[Client], clock: Callable[[], float] = time.monotonic):
        self._clients = tuple(clients)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """The requests that a client may make at once, and when that was."""
        self._answers: Counter[str] = Counter()

    def of(self, key: str) -> Client | None:
        """Returns the client of a key; None if there is none. All take the same time."""
        if not self._clients:
            return NOBODY
        found = None
        for client in self._clients:
            if hmac.compare_digest(key.encode(), client.key.encode()):
                found = client
        return found

    def asks(self, client: Client) -> None:
        """Counts a request."""
        if (rate := client.requests_per_minute) is None:
            return
        now = self._clock()
        left, then = self._left.get(client.name, (float(rate), now))
        left = min(float(rate), left + (now - then) * rate / 60)
        if left < 1:
            seconds = math.ceil((1 - left) * 60 / rate)
            raise APIError(
                429, f"{client.name} may make {rate} requests in a minute; try again in {seconds} "
                "s", code="rate_limit_exceeded", headers={"Retry-After": str(seconds)},
            )  # fmt: skip
        self._left[client.name] = left - 1, now

    def take(self, client: Client, count: int) -> None:
        """Counts answers that are begun, until as many are given back."""
        most, held = client.answers, self._answers[client.name]
        if most is not None and count > most:
            raise APIError(
                400, f"the request asks for {count} answers, and {client.name} has room for "
                f"{most}; ask for fewer", "n",
            )  # fmt: skip
        if most is not None and held + count > most:
            raise APIError(
                429, f"{client.name} has room for {most} answers at a time, and {held} are being "
                "written; wait for one", code="rate_limit_exceeded", headers={"Retry-After": "1"},
            )  # fmt: skip
        self._answers[client.name] += count

    def give_back(self, client: Client, count: int) -> None:
        """Marks these answers as finished."""
        self._answers -= Counter({client.name: count})
