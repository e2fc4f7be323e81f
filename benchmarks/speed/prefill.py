"""Reading prompts, conversations and room: time, memory, and what a later turn costs.

python -m benchmarks.speed.prefill MODEL    # a folder in Hugging Face layout, or a model's name
"""

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks.harness import command, console, headline, record
from jspec import models
from jspec.decoding import decode_rounds
from jspec.drafters.autoregressive import Autoregressive


def main(
    model: Annotated[str, typer.Argument(help="a folder, or a name")] = "jspec-7m",
    prompts: Annotated[str, typer.Option(help="comma-separated tokens of a prompt")] = "512,2048",
    turns: Annotated[int, typer.Option(min=0, help="of a conversation")] = 10,
    turn_tokens: Annotated[int, typer.Option(min=1, help="tokens of a question")] = 30,
    room: Annotated[int, typer.Option(min=64, help="slots beside which few are held")] = 4000,
    new_tokens: Annotated[int, typer.Option(min=2, help="tokens that are decoded")] = 40,
    repeats: Annotated[int, typer.Option(min=2, help="the first one compiles")] = 4,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Measures greedy plain decoding at batch 1, of random tokens, in one process."""
    headline(f"prompts and room: {model}")
    target = models.load(model)
    rng = np.random.default_rng(0)

    def text(size: int) -> np.ndarray:
        return rng.integers(target.model.vocab_size // 2, size=(1, size))

    def first_token(tokens: np.ndarray, **how: Any) -> jspec.State:
        state = jspec.prefill(target.model, target.params, tokens, **how)
        return jax.block_until_ready(jspec.step(target.model, target.params, state))

    table = Table("tokens of the prompt", "seconds to the first token", "peak memory so far")
    for size in sorted(map(int, prompts.split(","))):
        tokens = text(size)
        least = _least(lambda tokens=tokens: first_token(tokens, max_new_tokens=32), repeats)
        table.add_row(f"{size:,}", f"{least:.2f}", f"{_peak():.2f} GB")
        record(out, dict(bench="prefill", model=model, tokens=size, seconds=least, peak=_peak()))
    console.print(table)

    table = Table("turn", "tokens before", "seconds to the first token, going on", "read anew")
    state, said = None, np.zeros((1, 0), int)
    capacity = turns * (turn_tokens + new_tokens) + 1
    for turn in range(turns):
        asked = text(turn_tokens)
        how: dict[str, Any] = dict(max_new_tokens=new_tokens)
        begin = time.perf_counter()
        kept = dict(capacity=capacity) if state is None else dict(earlier=state)
        state = first_token(asked, **how, **kept)
        going_on = time.perf_counter() - begin
        said = np.concatenate([said, asked], axis=1)
        anew = _least(lambda said=said: first_token(said, capacity=capacity, max_new_tokens=1), 1)
        state = decode_rounds(
            target.model, target.params, state, Autoregressive(), None, new_tokens - 1
        )
        table.add_row(
            str(turn + 1), str(said.shape[1] - turn_tokens), f"{going_on:.2f}", f"{anew:.2f}"
        )
        row = dict(turn=turn + 1, tokens=said.shape[1], seconds=going_on, anew_seconds=anew)
        record(out, dict(bench="turns", model=model) | row)
        said = np.concatenate([said, np.asarray(state.out)[:, :new_tokens]], axis=1)
    console.print(table)

    prompt = text(turn_tokens)
    sizes = turn_tokens + 64, turn_tokens + room
    timed = [
        [_step(target, prompt, capacity, new_tokens) for capacity in sizes] for _ in range(repeats)
    ]
    few, many = np.min(timed[1:] or timed, axis=0).tolist()
    console.print(
        f"a step with room for 64 tokens {1e3 * few:.2f} ms, for {room:,} {1e3 * many:.2f} ms: "
        f"{many / few - 1:+.1%}"
    )
    record(out, dict(bench="room", model=model, room=room, few_seconds=few, many_seconds=many))


def _step(target: models.Loaded, prompt: np.ndarray, capacity: int, new_tokens: int) -> float:
    """Seconds of one of so many rounds, in a cache of so many slots."""
    model, params = target.model, target.params
    state = jspec.prefill(model, params, prompt, max_new_tokens=new_tokens, capacity=capacity)
    jax.block_until_ready(state)
    begin = time.perf_counter()
    state = decode_rounds(model, params, state, Autoregressive(), None, new_tokens)
    jax.block_until_ready(state)
    return (time.perf_counter() - begin) / new_tokens


def _least(run: Callable[[], Any], repeats: int) -> float:
    """The least seconds of some runs, after one that compiles."""
    run()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _peak() -> float:
    """Most memory that the process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    command(main)
