"""Random requests, mostly wrong: each is answered by the API, soon, and never with a 500.

python -m benchmarks.serving.random_requests                 # 2,000, 16 at a time
python -m benchmarks.serving.random_requests --count 100000
"""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import httpx2 as httpx
import typer

from benchmarks.harness import command, console, headline
from benchmarks.serving.process import ServerProcess, chat_options

SECONDS = 10
"""Most seconds of an answer."""
PATHS = ("/v1/completions", "/v1/chat/completions")
TEXTS: tuple[str, ...] = (
    "Once upon a time", "a", "", " ", "\0", "\ud83d\ude00", "\ud800", "\u2028", '"', "\\", "é" * 50,
    "a" * 3000,
    "<|im_end|>\n<|im_start|>system", "</tool_call>", "{{ 7 * 7 }}", "{% for a in b %}", "../../x",
    "http://127.0.0.1:1/", "None", "NaN", "null", "0", "-1", "9" * 400,
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, 2, -1, 3, 20, 255, 4095, 4096, 10**6, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63), 0.0, 0.5, 1.0, -0.0, 1e-30, 1e30, 1e308, -2.5, float("nan"), float("inf"),
)  # fmt: skip
SCHEMAS: tuple[Any, ...] = (
    {"type": "boolean"}, {"type": "integer"}, {"enum": ["a", 1, None]}, {"const": {"a": [1.5]}},
    {"type": "array", "items": {"type": "null"}, "maxItems": 3}, {"$ref": "#"},
    {"type": "string", "pattern": "^[a-z]{1,4}$"}, {"type": "string", "format": "date"},
    {"properties": {"a": {"$ref": "#"}, "b": {"type": "string"}}, "required": ["b"]},
    {"$ref": "http://a"}, {"anyOf": []},
    {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False},
    {"minimum": 3}, {"type": "string", "minLength": 5, "maxLength": 2}, {"not": {}}, {"type": "x"},
    {"allOf": [{"type": "string"}, {"minLength": 2}]}, {"oneOf": [{"type": "null"}, {"const": 2}]},
    {"type": ["string", "null"], "maxLength": 4}, True, {},
)  # fmt: skip
REGEXES = (
    "[0-9]{1,3}", "(yes|no)", "a*", "", "(", "[", "a{2,1}", "(?i)a", r"\d+\.\d", "(a|b)*a(a|b){18}",
    "(?=a)b", r"\1", "é+", "a{100000}", "((((a?){9}){9}){9}){9}", "\\", ".", "[^a]{1,8}",
)  # fmt: skip
ROLES = ("user", "assistant", "system", "developer", "tool", "nobody", "")
FIELDS = (
    "model", "prompt", "messages", "n", "temperature", "top_p", "top_k", "min_p", "seed", "stop",
    "stop_token_ids",
    "ignore_eos", "min_tokens", "max_tokens", "max_completion_tokens", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "logit_bias", "stream", "stream_options",
    "structured_outputs", "response_format", "tools", "tool_choice", "parallel_tool_calls", "user",
    "cache_salt", "logprobs", "top_logprobs", "chat_template_kwargs", "echo", "best_of", "suffix",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """A request as it is sent."""

    method: str
    path: str
    content: bytes
    leaves: bool
    """True if the client goes away when the head of the answer has come."""


def random_request(draw: random.Random, model: str) -> Request:
    """Returns a request, mostly of a known path, with fields that are right, wrong or nonsense.

    Args:
        draw: the random numbers.
        model: the name that the server knows.
    """
    path = draw.choice(PATHS)
    body: Any = {"model": model, "max_tokens": draw.randint(1, 8)}
    if path == PATHS[0]:
        body["prompt"] = draw.choice(TEXTS)
    else:
        body["messages"] = [_message(draw) for _ in range(draw.choice((1, 1, 2, 5)))]
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        name = draw.choice(FIELDS)
        body[name] = _value(draw, name)
    if not draw.randrange(20):
        body = _nonsense(draw, 0)
    content = json.dumps(body).encode()
    if not draw.randrange(10):
        content = _broken(content, draw)
    method = "POST" if draw.randrange(50) else draw.choice(("GET", "PUT", "DELETE", "HEAD"))
    if not draw.randrange(50):
        path = draw.choice(
            ("/", "/v1", "/v1/models", "/health", "/metrics", "/v1/embeddings", "//")
        )
    return Request(method, path, content, not draw.randrange(20))


def _value(draw: random.Random, name: str) -> Any:
    """Returns a value of a field: of its kind more often than not."""
    if not draw.randrange(4):
        return _nonsense(draw, 0)
    tool = {"type": "function", "function": {"name": "look", "parameters": draw.choice(SCHEMAS)}}
    known: dict[str, Any] = {
        "model": draw.choice(TEXTS),
        "prompt": draw.choice((draw.choice(TEXTS), [_number(draw)] * 3, ["a", "b"], [[5, 6], [7]])),
        "messages": [_message(draw) for _ in range(draw.choice((1, 3, 400)))],
        "stop": draw.choice((draw.choice(TEXTS), [draw.choice(TEXTS) for _ in range(4)])),
        "stop_token_ids": [_number(draw) for _ in range(2)],
        "logit_bias": {str(_number(draw)): draw.choice((1.0, -100, 50, 1e9))},
        "stream_options": {"include_usage": True},
        "structured_outputs": draw.choice((
            {"regex": draw.choice(REGEXES)}, {"json": draw.choice(SCHEMAS)},
            {"choice": [draw.choice(TEXTS) for _ in range(3)]}, {"json": "{}", "regex": "a"},
        )),
        "response_format": draw.choice((
            {"type": "text"}, {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": draw.choice(SCHEMAS)}},
        )),
        "tools": [tool] * draw.choice((1, 2, 200)),
        "tool_choice": draw.choice(("auto", "none", "required", tool, {"type": "function"})),
        "chat_template_kwargs": {draw.choice(("a", "tools", "self", "")): draw.choice(TEXTS)},
        "user": draw.choice(TEXTS),
        "cache_salt": draw.choice(TEXTS),
    }  # fmt: skip
    if name in known:
        return known[name]
    if name in ("stream", "ignore_eos", "parallel_tool_calls", "echo"):
        return draw.choice((True, False))
    return _number(draw)


def _message(draw: random.Random) -> Any:
    role, text = draw.choice(ROLES), draw.choice(TEXTS)
    content = draw.choice((text, text, [{"type": "text", "text": text}], None, [{"type": "image"}]))
    call = {"type": "function", "function": {"name": "look", "arguments": draw.choice(TEXTS)}}
    more = draw.choice(({}, {}, {"name": text}, {"tool_calls": [call]}, {"tool_call_id": text}))
    return {"role": role, "content": content, **more}


def _number(draw: random.Random) -> Any:
    return draw.choice(NUMBERS)


def _nonsense(draw: random.Random, depth: int) -> Any:
    """Returns any JSON value."""
    kind = draw.randrange(7 if depth < 4 else 4)
    if kind == 0:
        return draw.choice(TEXTS)
    if kind == 1:
        return draw.choice(NUMBERS)
    if kind in (2, 3):
        return draw.choice((None, True, False, [], {}))
    parts = [_nonsense(draw, depth + 1) for _ in range(draw.randint(1, 3))]
    if kind == 4:
        return parts
    return {draw.choice((*FIELDS, *TEXTS)): part for part in parts}


def _broken(content: bytes, draw: random.Random) -> bytes:
    """Returns bytes of a body that are no longer its own."""
    made = bytearray(content)
    place = draw.randrange(len(made) + 1)
    kind = draw.randrange(8)
    if kind == 0:
        return bytes(made[:place])
    if kind == 1:
        made[place:place] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 20)))
    elif kind == 2:
        made[place:place] = b"[" * draw.choice((10, 300, 10**5))
    elif kind == 3:
        made[place:place] = b"9" * draw.choice((30, 5000))
    elif kind == 4:
        made[place:place] = b'"\\ud800"'
    elif kind == 5:
        return bytes(draw.randrange(256) for _ in range(draw.randint(0, 200)))
    elif kind == 6:
        return b'{"a":' * 10**4 + b"1" + b"}" * 10**4
    else:
        del made[place : place + draw.randint(1, 9)]
    return bytes(made)


def right(status: int, content: bytes) -> bool:
    """Returns whether an answer is the API's: not a 500, and of its shape if it refuses."""
    if status in (499, 500, 501, 502, 504) or len(content) > 10**6:
        return False
    if status < 400 or not content:
        return True
    try:
        return set(json.loads(content)["error"]) == {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return False


def main(
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-800k",
    count: Annotated[int, typer.Option(min=1, help="requests")] = 2000,
    together: Annotated[int, typer.Option(min=1, help="requests at a time")] = 16,
    seed: Annotated[int, typer.Option(help="of the mixture")] = 0,
) -> None:
    """Counts answers by status, answers of 500 or of another shape, slow ones, and tracebacks."""
    headline(f"{model}: {count} random requests, {together} at a time")
    with chat_options(model) as serve, ServerProcess(serve) as server:
        began = time.perf_counter()
        found = asyncio.run(_asked(server.url, model, count, together, seed))
        seconds = time.perf_counter() - began
        running = server.figures()["vllm:num_requests_running"]
        held = server.megabytes
        code = server.end()
    tracebacks = sum("Traceback" in line for line in server.said)
    statuses = {name: n for name, n in found.items() if name.isdigit()}
    shown = ", ".join(f"{n} of {status}" for status, n in sorted(statuses.items()))
    console.print(f"{count} requests in {seconds:.0f} s: {shown}, {found['left']} left")
    console.print(
        f"{found['wrong']} answers of 500 or of another shape, {found['lost']} lost, "
        f"{found['slow']} after more than {SECONDS} s, {tracebacks} tracebacks; rows still in use: "
        f"{running:.0f}; exit code {code}; memory {held:.0f} MB"
    )
    if found["wrong"] or found["lost"] or found["slow"] or tracebacks or running or code:
        raise SystemExit(1)


async def _asked(url: str, model: str, count: int, together: int, seed: int) -> Counter[str]:
    found: Counter[str] = Counter()
    numbers = iter(range(count))
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def work() -> None:
            for number in numbers:
                request = random_request(random.Random(f"{seed} {number}"), model)
                began = time.perf_counter()
                try:
                    said = await _answer(client, request, found)
                except httpx.HTTPError as error:
                    found["lost"] += 1
                    said = repr(error)
                if time.perf_counter() - began > SECONDS:
                    found["slow"] += 1
                    said = f"{time.perf_counter() - began:.1f} s"
                if said is not None:
                    console.print(f"request {number}: {said:.200}: {request.content[:400]!r}")

        await asyncio.gather(*(work() for _ in range(together)))
    return found


async def _answer(client: Any, request: Request, found: Counter[str]) -> str | None:
    """Counts an answer; what is wrong with it."""
    head = {"content-type": "application/json"}
    parts = client.stream(request.method, request.path, content=request.content, headers=head)
    async with parts as answer:
        if request.leaves:
            found["left"] += 1
            return None
        content = await answer.aread()
    found[str(answer.status_code)] += 1
    if right(answer.status_code, content):
        return None
    found["wrong"] += 1
    return f"{answer.status_code} {content[:200]!r}"


if __name__ == "__main__":
    command(main)
