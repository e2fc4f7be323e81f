"""A server's tokens per second, against a static batch of as many rows; the host's share.

python -m benchmarks.serving.throughput                    # the bundled jspec-7m
python -m benchmarks.serving.throughput --model smollm2-135m --method autoregressive
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import httpx2 as httpx
import jax
import numpy as np
import typer

import jspec
from benchmarks.harness import command, console, headline
from benchmarks.serving.process import ServerProcess
from benchmarks.serving.requests import SCHEMA, TEXTS
from jspec.models import Loaded, load


def main(
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    method: Annotated[str, typer.Option(help="how the server drafts")] = "auto",
    rows: Annotated[int, typer.Option(min=1)] = 8,
    requests: Annotated[int, typer.Option(min=1, help="in each part")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 32,
    new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    together: Annotated[int, typer.Option(min=0, help="requests at a time; 0: 2 per row")] = 0,
    serve: Annotated[str, typer.Option(help="more options of jspec serve")] = "",
) -> None:
    """Measures the server and the static batch in turn; neither runs while the other does."""
    headline(f"{model}, {method}: {rows} rows, {requests} requests of {new_tokens} new tokens")
    target = load(model)
    prompts = prompts_of(target, requests, prompt_tokens)
    room = room_for(prompt_tokens + new_tokens)
    options = ["--model", model, "--method", method, "--rows", str(rows), "--max-model-len"]
    with ServerProcess([*options, str(room), *serve.split()]) as server:
        built = jspec.LLM(target, method)
        speeds: dict[str, list[float]] = {"server": [], "static": [], "plain static": []}
        before: dict[str, float] = {}
        for repeat in range(repeats + 1):
            if repeat == 1:
                before = server.figures()
            speed = _served(server.url, model, prompts, new_tokens, together or 2 * rows)
            of_server = server.figures()
            static = _static(built.model, target, built, prompts, rows, new_tokens)
            plain = _static(target.model, target, None, prompts, rows, new_tokens)
            if repeat:  # the first turn compiles the static programs
                for name, one in zip(speeds, (speed, static, plain), strict=True):
                    speeds[name].append(one)
        shaped, size = _shaped(server.url, model, prompts, together or 2 * rows)
        free = _served(server.url, model, prompts, size, together or 2 * rows)
    medians = {name: float(np.median(values)) for name, values in speeds.items()}
    for name, value in medians.items():
        console.print(f"{name}: {value:.0f} tokens/s")
    spent = {name: of_server[name] - before[name] for name in of_server}
    device = spent["jspec:step_seconds_total"] + spent["jspec:read_seconds_total"]
    share = spent["jspec:host_seconds_total"] / device
    calls = spent["jspec:device_calls_total"]
    ratios = np.array(speeds["server"]) / np.array(speeds["static"])
    console.print(f"server over static batch: {np.median(ratios):.2f}")
    console.print(
        f"a device call: {1000 * spent['jspec:step_seconds_total'] / calls:.1f} ms; between two: "
        f"{1000 * spent['jspec:host_seconds_total'] / calls:.2f} ms of the host, {share:.1%}; "
        f"prompts {spent['jspec:read_seconds_total'] / device:.1%} of the device's time"
    )
    console.print(
        f"under a JSON schema: {shaped:.0f} tokens/s, as many tokens of free text {free:.0f}"
    )


def room_for(tokens: int) -> int:
    """Returns tokens of a row, rounded up: other lengths are mostly the same programs."""
    return -(-tokens // 64) * 64


def prompts_of(target: Loaded, count: int, size: int) -> list[list[int]]:
    """Returns so many prompts of a text, in tokens."""
    ids = target.tokenizer.encode(TEXTS.read_text("utf-8")).ids
    begins = np.linspace(0, len(ids) - size - 1, count).astype(int)
    return [ids[begin : begin + size] for begin in begins]


def _served(url: str, name: str, prompts: Sequence[list[int]], count: int, together: int) -> float:
    """Returns tokens per second of free texts."""
    fields = {"temperature": 0, "ignore_eos": True, "max_tokens": count}
    bodies = [{"model": name, "prompt": prompt, **fields} for prompt in prompts]
    seconds, tokens = asyncio.run(asked(url, bodies, together))
    return tokens / seconds


def _shaped(url: str, name: str, prompts: Sequence[list[int]], together: int) -> tuple[float, int]:
    """Returns tokens per second of answers of a schema, and how long they are."""
    fields = {"structured_outputs": {"json": SCHEMA}, "max_tokens": 64, "temperature": 0}
    bodies = [{"model": name, "prompt": prompt, **fields} for prompt in prompts]
    asyncio.run(asked(url, bodies[:1], 1))  # the grammar is made once
    seconds, tokens = asyncio.run(asked(url, bodies, together))
    return tokens / seconds, round(tokens / len(bodies))


async def asked(
    url: str,
    bodies: Sequence[dict[str, Any]],
    together: int,
    none_left: Callable[[], None] = lambda: None,
) -> tuple[float, int]:
    """Measures the seconds and answered tokens of requests, so many at a time.

    Args:
        url: of the server.
        bodies: of the requests.
        together: how many are asked at a time.
        none_left: is called, in a thread, as soon as there are fewer.
    """
    left, tokens, told = iter(bodies), 0, []
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def work() -> None:
            nonlocal tokens
            for body in left:
                answer = await client.post("/v1/completions", json=body)
                answer.raise_for_status()
                tokens += answer.json()["usage"]["completion_tokens"]
            if not told:
                told.append(asyncio.create_task(asyncio.to_thread(none_left)))

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(together)))
        seconds = time.perf_counter() - began
        await asyncio.gather(*told)
        return seconds, tokens


def _static(
    model: Any, target: Loaded, built: Any, prompts: Sequence[list[int]], rows: int, count: int
) -> float:
    """Returns tokens per second of full batches, prompts included, with settings by row as a
    server has them: greedy rows are those of temperature 0.
    """
    sampling = jspec.Sampling(np.zeros(rows, np.float32))
    more = {} if built is None else built.drafting
    known, began = {}, time.perf_counter()
    for begin in range(0, len(prompts), rows):
        result = jspec.decode(
            model, target.params, np.array(prompts[begin : begin + rows]), max_new_tokens=count,
            sampling=sampling, key=0, **more, **known,
        )  # fmt: skip
        known = dict(drafter_state=result.drafter_state, policy_state=result.policy_state)
    jax.block_until_ready(result.tokens)
    return len(prompts) * count / (time.perf_counter() - began)


if __name__ == "__main__":
    command(main)
