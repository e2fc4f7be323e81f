"""What a gateway before several servers needs, so that the death of one loses no request.

With its seed a request has the same answer from every server, so that another one can be asked. A
stream is cut into events in other places then; `SentEvents` takes out what a client has read.
"""

import asyncio
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

_BEGIN = 128
"""Letters or tokens by which prompts are told apart."""


class Differs(Exception):
    """The second answer to a request is not the first one, of which a client has read a part."""


def seeded(body: bytes) -> tuple[bytes, str]:
    """A request with a seed, and the key of the conversation that it belongs to.

    Requests with the same key begin alike: they have the model, the salt and the messages up to the
    user's first in common, or the begin of the prompt.

    Args:
        body: of a request to `/v1/chat/completions` or `/v1/completions`.

    Returns:
        The body, with a seed drawn for it if it has none; and the key, empty where the body is no
        request.

    Example:
        >>> body, key = seeded(b'{"prompt": "Once", "seed": 3}')
        >>> body
        b'{"prompt": "Once", "seed": 3}'
        >>> key == seeded(b'{"prompt": "Once", "max_tokens": 8}')[1]
        True
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return body, ""  # the server says what is wrong with it
    if not isinstance(asked, dict):
        return body, ""
    messages, begin = asked.get("messages"), asked.get("prompt")
    if isinstance(messages, list):
        roles = [one.get("role") if isinstance(one, dict) else None for one in messages]
        begin = messages[: roles.index("user") + 1 if "user" in roles else 1]
    elif isinstance(begin, str | list):
        begin = begin[:_BEGIN]
    common = json.dumps([asked.get("model"), asked.get("cache_salt"), begin])
    key = hashlib.sha256(common.encode()).hexdigest()
    if asked.get("seed") is None:
        body = json.dumps({**asked, "seed": secrets.randbits(53)}).encode()
    return body, key


async def asked(
    application: Callable[..., Awaitable[None]], scope: dict[str, Any], body: bytes
) -> AsyncGenerator[Any, None]:
    """Asks an application of ASGI without HTTP. Closed before its end, it leaves as a client does.

    Args:
        application: of a server, see `jspec.serve.launch.service_of`.
        scope: of the request.
        body: of the request.

    Yields:
        The status and the headers, as a pair; and then the parts of the body, as bytes.
    """
    sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    unread, gone = [body], asyncio.Event()

    async def receive() -> dict[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    work = asyncio.ensure_future(application(scope, receive, sent.put))
    work.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        while message := await sent.get():
            if message["type"] == "http.response.start":
                named = {name.decode(): value.decode() for name, value in message["headers"]}
                yield message["status"], named
            else:
                yield message["body"]
        await work
    finally:
        gone.set()


class SentEvents:
    r"""The server-sent events of an answer that a client has read, over several servers.

    Give it each event before it is sent, and call `start_over` when another server begins to answer
    the same request.

    Example:
        >>> sent = SentEvents()
        >>> say = lambda text: b'data: {"choices": [{"index": 0, "text": "%s"}]}\n\n' % text
        >>> sent.unread(say(b"Once up"))
        b'data: {"choices": [{"index": 0, "text": "Once up"}]}\n\n'
        >>> sent.start_over()
        >>> sent.unread(say(b"Once")), sent.unread(say(b" upon"))
        (b'', b'data: {"choices": [{"index": 0, "text": "on"}]}\n\n')
    """

    def __init__(self):
        self._sent: dict[tuple[Any, ...], Any] = {}
        """Texts and lists by their place in the answer, each as long as it was sent."""
        self._seen: Counter[tuple[Any, ...]] = Counter()
        """How much of each has come from the server that answers now."""
        self._head: dict[str, Any] | None = None
        """What all events have in common: the first server's."""
        self.is_done = False
        """Whether the end of the answer was given."""

    def start_over(self) -> None:
        """The next event is the first one of another server."""
        self._seen.clear()

    def unread(self, event: bytes) -> bytes:
        """The part of an event that the client has not read, as an event; empty if there is none.

        Args:
            event: `data: JSON` or `data: [DONE]`, with its blank line; or a whole body that is not
                streamed.

        Raises:
            Differs: if its text is not the one that the client has read.
        """
        data = event.removeprefix(b"data: ").strip()
        if not event.startswith(b"data: ") or data == b"[DONE]":  # all there is, or its end
            was_done, self.is_done = self.is_done, self.is_done or bool(event)
            return b"" if was_done else event
        chunk = json.loads(data)
        if "choices" not in chunk:  # an error, which is sent as it is
            return event
        before, is_first = self._size(), self._head is None
        body = {"choices": self._rest(chunk["choices"], "choices")}
        if usage := chunk.get("usage"):
            body["usage"] = next(iter(self._rest([usage], "usage")), None)
        if self._head is None:
            self._head = {name: chunk[name] for name in ("id", "created") if name in chunk}
        if not is_first and self._size() == before:
            return b""
        shown = json.dumps({**chunk, **self._head, **body}, ensure_ascii=False)
        return b"data: " + shown.encode() + b"\n\n"

    def _size(self) -> int:
        return sum(map(len, self._sent.values()))

    def _rest(self, value: Any, *place: Any) -> Any:
        """What was not sent of a piece of text or of a list, or of all that is in a choice."""
        if isinstance(value, dict):
            inner = (*place, value["index"]) if "index" in value else place
            return {name: self._rest(part, *inner, name) for name, part in value.items()}
        if isinstance(value, list) and value and isinstance(value[0], dict) and "index" in value[0]:
            return [self._rest(part, *place) for part in value]
        if not isinstance(value, str | list):
            return value
        sent, begin = self._sent.get(place, value[:0]), self._seen[place]
        known = sent[begin : begin + len(value)]
        # Servers give names of their own to calls, and round log-probabilities in their own ways.
        if isinstance(value, str) and place[-1] != "id" and not value.startswith(known):
            raise Differs(f"another server writes {value!r:.60}, and {known!r:.60} was sent")
        self._seen[place] = begin + len(value)
        self._sent[place] = sent + value[len(known) :]
        return value[len(known) :]
