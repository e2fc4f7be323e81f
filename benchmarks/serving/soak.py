"""Requests of all kinds at once, and every answer compared with `jspec.decode` alone.

python -m benchmarks.serving.soak                          # 1,000, 32 at a time
python -m benchmarks.serving.soak --count 100000
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import httpx2 as httpx
import typer

from benchmarks.harness import command, console, headline
from benchmarks.serving.process import ServerProcess
from benchmarks.serving.requests import FORMS, Ask, answers, mixed
from jspec.cli import options
from jspec.models import load

_PART = 1000
"""Most requests between two looks at the server's memory."""
_GROWTH = 0.05
"""Share by which a server's memory may grow in the second half: pieces of freed memory."""


def main(
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-800k",
    method: options.MethodName = None,
    count: Annotated[int, typer.Option(min=1, help="requests")] = 1000,
    together: Annotated[int, typer.Option(min=1, help="requests at a time")] = 32,
    rows: Annotated[int, typer.Option(min=1)] = 8,
    room: Annotated[int, typer.Option(min=32, help="tokens of a row")] = 256,
    seed: Annotated[int, typer.Option(help="of the mixture")] = 0,
) -> None:
    """Counts answers that are lost or wrong, programs compiled on the way, and memory."""
    headline(f"{model}: {count} requests, {together} at a time, {rows} rows of {room} tokens")
    serve = ["--model", model, "--rows", str(rows), "--max-model-len", str(room)]
    serve += ["--method", method] if method else []
    target = load(model)
    with ServerProcess([*serve, "--prefix-megabytes", "16"]) as server:
        total, held, begun = Counter(), [], server.megabytes
        part = min(_PART, -(-count // 4))
        for begin in range(0, count, part):
            asks = mixed(min(part, count - begin), target, model, seed + begin, room)
            counted, seconds = run(server, asks, together)
            check(target, asks, counted, room)
            held.append(server.megabytes)
            total.update({name: n for name, n in counted.items() if isinstance(n, int)})
            console.print(
                f"{begin + len(asks)}: {shown(total)}, {seconds:.1f} s, {held[-1]:.0f} MB"
            )
        figures = server.figures()
        compiled = int(figures["jspec:compiled_programs_total"])
        running = int(figures["vllm:num_requests_running"] + figures["vllm:num_requests_waiting"])
        code = server.end()
    console.print(
        f"programs compiled meanwhile: {compiled}; rows still in use: {running}; exit code {code}; "
        f"memory {begun:.0f} MB at the start, {held[0]:.0f} after the first part, "
        f"{held[-1]:.0f} at the end: {'it grows' if grows(held) else 'it does not grow'}"
    )
    if total["wrong"] or total["lost"] or compiled or running or code or grows(held):
        raise SystemExit(1)


def grows(megabytes: Sequence[float]) -> bool:
    """Returns whether the memory of a server is larger in the second half of its requests.

    What is kept for prompts that begin alike, and what a drafter learns, has been filled by then.

    Args:
        megabytes: after each part of the requests.

    Example:
        >>> grows([993, 1071, 1057, 1062]), grows([1000, 1100, 1200, 1300])
        (False, True)
    """
    half = len(megabytes) // 2
    return half > 0 and max(megabytes[half:]) > (1 + _GROWTH) * max(megabytes[:half])


def shown(total: Counter[str]) -> str:
    """Returns the counts in words."""
    order = ("answered", "left", "lost", "wrong", "valid", "forms")
    return ", ".join(f"{total[name]} {name}" for name in order)


def run(server: ServerProcess, asks: Sequence[Ask], together: int) -> tuple[dict[str, Any], float]:
    """Asks, some requests at a time.

    Returns:
        What came of them, with "texts" for each, None where the client left; and the seconds.
    """
    return asyncio.run(_run(server.url, asks, together))


async def _run(url: str, asks: Sequence[Ask], together: int) -> tuple[dict[str, Any], float]:
    texts: list[str | None] = [None] * len(asks)
    reasons: list[str | None] = [None] * len(asks)
    counts = Counter(answered=0, left=0, lost=0)
    left = iter(enumerate(asks))
    limits = httpx.Limits(max_connections=together)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def work() -> None:
            for place, ask in left:
                try:
                    outcome = await _ask(client, ask)
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    console.print(f"request {place} was lost: {error!r}: {ask.body}")
                    counts["lost"] += 1
                    continue
                if outcome is None:
                    counts["left"] += 1
                else:
                    counts["answered"] += 1
                    texts[place], reasons[place] = outcome

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(together)))
        seconds = time.perf_counter() - began
    return {**counts, "texts": texts, "reasons": reasons}, seconds


async def _ask(client: Any, ask: Ask) -> tuple[str, str] | None:
    """Returns the text of an answer and why it ended; None if the client left."""
    if not ask.stream:
        answer = await client.post("/v1/completions", json=ask.body)
        answer.raise_for_status()
        choice = answer.json()["choices"][0]
        return choice["text"], choice["finish_reason"]
    text, reason, events = "", None, 0
    async with client.stream("POST", "/v1/completions", json=ask.body) as answer:
        answer.raise_for_status()
        if ask.leaves_after == 0:
            return None
        async for line in answer.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            text, reason = text + choice["text"], choice["finish_reason"]
            events += 1
            if events == ask.leaves_after:
                return None
    if reason is None:
        raise ValueError("the stream ended without a reason")
    return text, reason


def check(target: Any, asks: Sequence[Ask], counted: dict[str, Any], room: int) -> None:
    """Adds to the counts: answers that are wrong, and forms that are whole."""
    expected = answers(target, asks, room)
    counted.update(wrong=0, valid=0, forms=0)
    for place, (ask, text) in enumerate(zip(asks, counted["texts"], strict=True)):
        if text is None:
            continue
        if text != expected[place]:
            counted["wrong"] += 1
            console.print(f"request {place}: {text!r} and not {expected[place]!r}: {ask.body}")
        if ask.form is not None and "json" in FORMS[ask.form]:
            counted["forms"] += 1
            # One that reached its limit has the beginning of a text.
            whole = counted["reasons"][place] == "stop"
            counted["valid"] += whole and isinstance(json.loads(text), dict)


if __name__ == "__main__":
    command(main)
