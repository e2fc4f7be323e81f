"""Hostile clients: requests that cost a server time or memory before they are refused, and
connections that hold it up. From an address of their own.
"""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

ADDRESS = "127.0.0.2"
"""Of hostile clients: a server counts connections, and what it makes, by address."""
_HEAD = (
    "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    "Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
)
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
)
"""Of a server that is attacked: it shows tools, and cuts what was thought."""
_PATIENCE = 30
"""Seconds after which an answer is not waited for any longer."""


@contextmanager
def serving(model: str) -> Iterator[list[str]]:
    """Yields the options of a server that is attacked: it has chats, too."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        options = ["--model", model, "--rows", "8", "--max-model-len", "256"]
        yield [*options, "--chat-template", template.name]


@dataclass
class Told:
    """Answers to hostile requests, by kind."""

    statuses: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """The longest from a request that was sent to its answer."""

    def add(self, kind: str, status: int, seconds: float) -> None:
        self.statuses.setdefault(kind, []).append(status)
        self.seconds[kind] = max(self.seconds.get(kind, 0), seconds)


def bodies(model: str, draw: random.Random) -> dict[str, Callable[[], tuple[str, dict[str, Any]]]]:
    """Requests by kind: the path and the body of each."""

    def word(size: int) -> str:
        letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=min(size, 100)))
        return (letters * (size // len(letters) + 1))[:size]  # clients are to be quick

    def size(most: int) -> int:
        return draw.randint(most // 2, most)  # what was made is kept

    def completion(**fields: Any) -> tuple[str, dict[str, Any]]:
        return "/v1/completions", {"model": model, "prompt": "a", "max_tokens": 4} | fields

    def form(**fields: Any) -> tuple[str, dict[str, Any]]:
        return completion(structured_outputs=fields)

    def chat(messages: list[Any], **fields: Any) -> tuple[str, dict[str, Any]]:
        return "/v1/chat/completions", {"model": model, "messages": messages} | fields

    def spelled(number: int) -> str:
        return "".join(
            f"%{ord(c):02x}" if number >> n & 1 else c for n, c in enumerate("abcdefghijkl")
        )

    def tool(number: int) -> dict[str, Any]:
        schema = {"properties": {word(8): {"type": "string"} for _ in range(20)}}
        return {"type": "function", "function": {"name": f"t{number}", "parameters": schema}}

    one = {"role": "user", "content": "a"}
    return {
        "stop strings of 64 KB": lambda: completion(stop=[word(4096) for _ in range(16)]),
        "stop strings that just fit": lambda: completion(stop=[word(120) for _ in range(4)]),
        "choices of 1 MB": lambda: form(choice=[word(1000) for _ in range(1000)]),
        "choices of 200 KB": lambda: form(choice=[word(200) for _ in range(1000)]),
        "an expression that explodes": lambda: form(regex=f"(a|b)*a(a|b){{{size(60)}}}"),
        "an expression of many letters": lambda: form(regex=rf"(\w{{1,{size(30)}}}){{40}}"),
        "a schema of many properties": lambda: form(
            json={"properties": {word(9): {"type": "string"} for _ in range(5000)}}
        ),
        "references in many spellings": lambda: form(json={
            "$defs": {"abcdefghijkl": {"anyOf": [{"const": n} for n in range(400)]}},
            "anyOf": [{"$ref": f"#/$defs/{spelled(n)}"} for n in range(1000)],
        }),
        "references that double": lambda: form(json={
            "$ref": "#/$defs/0",
            "$defs": {str(n): {"type": "array", "prefixItems": [{"$ref": f"#/$defs/{n + 1}"}] * 2}
                      for n in range(40)} | {"40": {"type": "null"}},
        }),
        "40,000 messages": lambda: chat([one] * 40_000),
        "as many messages as fit": lambda: chat([one] * 30),
        "thoughts": lambda: chat([
            {"role": "assistant", "content": f"<think>{word(900)}</think>a"}, one
        ] * 900),
        "128 tools": lambda: chat(
            [one], tools=[tool(n) for n in range(128)], tool_choice="required"),
        "a prompt of 3 MB": lambda: completion(prompt=word(3 * 10**6)),
        "256 prompts": lambda: completion(prompt=["a b c"] * 256),
        "128 answers": lambda: completion(n=128, max_tokens=100),
        "a bias of all tokens": lambda: completion(logit_bias={str(n): 1.0 for n in range(4000)}),
        "long answers": lambda: completion(max_tokens=200, logprobs=20, ignore_eos=True),
        "unknown fields": lambda: completion(**{word(9): word(20) for _ in range(20_000)}),
    }  # fmt: skip


RAW = (
    "a head that does not end", "a body that does not end", "an answer that is not taken",
    "connections that say nothing", "a stream that is left", "garbage", "brackets",
)  # fmt: skip


class Attack:
    """Hostile clients, each of which goes through all kinds again and again.

    Args:
        url: of the server.
        model: the name that it knows.
        seed: of what they send.
    """

    def __init__(self, url: str, model: str, seed: int):
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._model, self._seed = model, seed
        self.told = Told()

    async def run(self, clients: int, seconds: float) -> None:
        """Runs so many clients at once, for so long."""
        ends = time.monotonic() + seconds
        await asyncio.gather(*(self._client(number, ends) for number in range(clients)))

    async def _client(self, number: int, ends: float) -> None:
        draw = random.Random(f"{self._seed} {number}")
        known = bodies(self._model, draw)
        while time.monotonic() < ends:
            kinds = [*known, *RAW]
            draw.shuffle(kinds)
            for kind in kinds:
                if time.monotonic() > ends:
                    break
                left = max(1.0, min(_PATIENCE, ends - time.monotonic()))
                # What the server does not like it closes, as it may.
                with suppress(OSError, TimeoutError, ValueError, IndexError):
                    async with asyncio.timeout(left):
                        if kind in known:
                            await self._ask(kind, *known[kind]())
                        else:
                            await self._raw(kind, draw)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, local_addr=(ADDRESS, 0))

    async def _ask(self, kind: str, path: str, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        reader, writer = await self._open()
        try:
            writer.write(_HEAD.format(path=path, size=len(content)).encode())
            writer.write(content)
            began = time.monotonic()
            line = await reader.readline()
            await reader.read()
            self.told.add(kind, int(line.split()[1]), time.monotonic() - began)
        finally:
            writer.close()

    async def _raw(self, kind: str, draw: random.Random) -> None:
        if kind == "connections that say nothing":
            open_ = [await self._open() for _ in range(100)]
            await asyncio.sleep(5)
            for _, writer in open_:
                writer.close()
            return
        reader, writer = await self._open()
        try:
            if kind == "a head that does not end":
                writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX: ")
                await self._dribble(writer, reader)
            elif kind == "a body that does not end":
                writer.write(_HEAD.format(path="/v1/completions", size=10**6).encode())
                await self._dribble(writer, reader)
            elif kind == "garbage":
                writer.write(draw.randbytes(10_000))
                await reader.read()
            elif kind == "brackets":
                writer.write(_HEAD.format(path="/v1/chat/completions", size=10**6).encode())
                writer.write(b"[" * 10**6)
                await reader.read()
            else:
                body = {"model": self._model, "prompt": "a", "max_tokens": 200, "stream": True}
                content = json.dumps(body | {"ignore_eos": True, "logprobs": 20}).encode()
                writer.write(_HEAD.format(path="/v1/completions", size=len(content)).encode())
                writer.write(content)
                await reader.readline()
                await asyncio.sleep(0.1 if kind == "a stream that is left" else 8)
        finally:
            writer.close()

    async def _dribble(self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        """Sends a byte per second, until the server closes or the patience ends."""
        for _ in range(8):
            writer.write(b"a")
            await writer.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await reader.read()
                    return
