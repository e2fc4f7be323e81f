"""Servers that draft differently, asked in turn: what speculation is worth under load.

python -m benchmarks.serving.methods                       # the bundled jspec-7m: plain, and auto
python -m benchmarks.serving.methods --model smollm2-135m --requests 16 --repeats 1
"""

import asyncio
import time
from contextlib import ExitStack
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import command, console, headline
from benchmarks.serving.process import ServerProcess
from benchmarks.serving.requests import SCHEMA
from benchmarks.serving.throughput import asked, prompts_of, room_for
from jspec.models import load

PLAIN = "autoregressive"
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minDigits": 1, "maxDigits": 2},
        "colors": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "likes": {"type": "string", "maxLength": 40},
    },
    "required": ["name", "age", "colors", "likes"],
}
"""A schema with texts and numbers of the model's own."""
_FORM = {"temperature": 0, "max_tokens": 96}
_FREE = {**_FORM, "ignore_eos": True}
_KINDS: dict[str, dict[str, Any]] = {
    "text": _FREE,
    "drawn": {**_FREE, "temperature": 0.8, "top_p": 0.95, "seed": 1},
    "short": {**_FREE, "max_tokens": 32},
    "mixed": {**_FREE, "max_tokens": [16, 64, 32, 96]},
    "schema": {**_FORM, "structured_outputs": {"json": SCHEMA}},
    "record": {**_FORM, "structured_outputs": {"json": RECORD}},
}


def main(
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    methods: Annotated[str, typer.Option(help="besides plain decoding, with commas")] = "auto",
    rows: Annotated[int, typer.Option(min=1)] = 8,
    requests: Annotated[int, typer.Option(min=1, help="of each kind")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 32,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    kinds: Annotated[str, typer.Option(help="of requests, with commas")] = ",".join(_KINDS),
    together: Annotated[int, typer.Option(min=0, help="requests at a time; 0: 2 a row")] = 0,
    bare: Annotated[
        bool, typer.Option("--bare", help="of plain decoding nothing more can be asked")
    ] = False,
    serve: Annotated[str, typer.Option(help="more options of jspec serve")] = "",
) -> None:
    """All servers are up; one is asked at a time, and the others sleep."""
    names = [PLAIN, *(name.strip() for name in methods.split(","))]
    headline(f"{model}: {rows} rows, {requests} requests of each kind, {', '.join(names)}")
    # Other prompts in every turn: what was answered before, a drafter would know by heart.
    prompts = prompts_of(load(model), rows + requests * repeats, prompt_tokens)
    chosen = {kind: _KINDS[kind] for kind in kinds.split(",")}
    room = str(room_for(prompt_tokens + _FORM["max_tokens"]))
    shared = ["--model", model, "--rows", str(rows), "--max-model-len", room, *serve.split()]
    speeds = {(name, kind): [] for name in names for kind in _KINDS}
    waited = {key: [] for key in speeds}
    rounds, prompts_share = ({key: [] for key in speeds} for _ in range(2))
    with ExitStack() as stack:
        # As whoever wants nothing else would start it.
        less = ["--no-penalties", "--max-grammar-states", "0", "--max-logprobs", "-1"]
        more = {PLAIN: less if bare else []}
        servers = {
            name: stack.enter_context(
                ServerProcess([*shared, "--method", name, *more.get(name, [])])
            )
            for name in names
        }
        for repeat in range(repeats + 1):
            # The first turn warms grammars, and what drafters learn.
            first = 0 if not repeat else rows + (repeat - 1) * requests
            some = prompts[first : rows + repeat * requests]
            for kind, fields in chosen.items():
                bodies = [_body(model, prompt, fields, place) for place, prompt in enumerate(some)]
                for name, server in servers.items():
                    if name == PLAIN and "structured_outputs" in bodies[0]:
                        continue
                    before = server.figures()
                    busy = _Busy(server)
                    seconds, tokens = asyncio.run(
                        asked(server.url, bodies, together or 2 * rows, busy.ends)
                    )
                    after = server.figures()
                    if repeat:
                        speeds[name, kind].append(tokens / seconds)
                        waited[name, kind].append(busy.speed)
                        rounds[name, kind] += server.lines()[-len(bodies) :]
                        prompts_share[name, kind].append(_reading(before, after))
    for kind in chosen:
        plain = speeds[PLAIN, kind] or speeds[PLAIN, "short"] or [np.nan]
        for name in names:
            if known := speeds[name, kind]:
                ratio = np.median(np.array(known) / np.array(plain))
                full = waited[PLAIN, kind] or waited[PLAIN, "short"] or [np.nan]
                ratio_full = np.median(np.array(waited[name, kind]) / np.array(full))
                per_round = np.mean([line["tokens_per_round"] for line in rounds[name, kind]])
                size = np.mean([line["completion_tokens"] for line in rounds[name, kind]])
                console.print(
                    f"{kind:8} {name:20} {np.median(known):6.0f} tokens/s  {ratio:.2f} of plain, "
                    f"{ratio_full:.2f} while others wait  "
                    f"{per_round:.2f} tokens a round, answers of {size:.0f} tokens, "
                    f"prompts {np.median(prompts_share[name, kind]):.0%}"
                )
    console.print("(schema and record: over free texts of plain decoding, `short`)")


def _body(model: str, prompt: list[int], fields: dict[str, Any], place: int) -> dict[str, Any]:
    """A request; of several sizes each has its own in turn, so that rows end one by one."""
    sizes = fields["max_tokens"]
    size = sizes[place % len(sizes)] if isinstance(sizes, list) else sizes
    return {"model": model, "prompt": prompt, **fields, "max_tokens": size}


class _Busy:
    """The tokens that a server writes from here on, until no more requests come: while all of its
    rows are taken. What rows leave empty at the end of the last answers is not in it.
    """

    def __init__(self, server: ServerProcess):
        self._server = server
        self._before, self._began = self._tokens, time.perf_counter()
        self.speed = float("nan")
        """Tokens per second."""

    def ends(self) -> None:
        seconds = time.perf_counter() - self._began
        self.speed = (self._tokens - self._before) / seconds

    @property
    def _tokens(self) -> float:
        return self._server.figures()["vllm:generation_tokens_total"]


def _reading(before: dict[str, float], after: dict[str, float]) -> float:
    """The share of prompts in the time of the device."""
    read, step = (
        after[name] - before[name]
        for name in ("jspec:read_seconds_total", "jspec:step_seconds_total")
    )
    return read / (read + step)


if __name__ == "__main__":
    command(main)
