"""A whole service over the fake device, for tests of HTTP."""

import json
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import fakes
from starlette.testclient import TestClient

from jspec.processors.grammar import Capacity
from jspec.request import Room
from jspec.serve import calls
from jspec.serve.limits import ServerLimits
from jspec.serve.request_parser import RequestParser
from jspec.serve.scheduler import Scheduler
from jspec.serve.service import Served, Service

ROOM = Room(
    min_tokens=True, penalties=True, num_biases=300, logprobs=2, grammar=Capacity(256, 64),
    stop=Capacity(64, 64),
)  # fmt: skip


@contextmanager
def service(
    device=None,
    *,
    api_key=None,
    room=None,
    target=None,
    adapters=(),
    sampling=MappingProxyType({}),
    **scheduling,
):
    """A client of a service that runs, the device, and the lines of its log."""
    device, lines = device or fakes.FakeDevice(), []
    known = target or fakes.loaded()
    made = Service(
        Served("bytes", api_key, 1, adapters),
        RequestParser(
            known,
            fakes.CONTEXT,
            replace(ROOM, **(room or {})),
            calls.parser_of(known.chat.with_tools),
            ServerLimits(form_seconds=60),  # a busy machine needs some to start the first process
            sampling,
        ),
        lambda deliver: Scheduler(device, deliver, **scheduling),
        lambda: 0,
        lambda line: lines.append(json.loads(line)),
    )
    with TestClient(made.application(), raise_server_exceptions=False) as client:
        client.device, client.lines, client.service = device, lines, made
        try:
            yield client
        finally:
            device.go.set()


@contextmanager
def recorded(device):
    """The requests that the device reads meanwhile."""
    seen, read = [], device.read
    device.read = lambda *of: seen.append(of[1]) or read(*of)
    try:
        yield seen
    finally:
        del device.read


def figures(client) -> dict[str, float]:
    """What the server counts, by name and labels."""
    lines = client.get("/metrics").text.splitlines()
    return {k: float(v) for k, v in (x.rsplit(" ", 1) for x in lines if x[0] != "#")}


def events(response) -> list:
    """Returns what a stream sent, parsed, and that it ended as it has to."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
