"""A round without a draft, in a back-off of `auto`, against plain decoding's round.

python -m benchmarks.speed.rest --model smollm2-135m --batch-sizes 1,4,8 --dtypes float32,bfloat16
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array
from rich.table import Table

import jspec
from benchmarks.harness import command, console, headline, paired, record
from jspec import models
from jspec.costs.measuring import set_backoff
from jspec.decoding import decode_rounds
from jspec.methods import LLM
from jspec.protocols import Drafting
from jspec.types import State

_PROMPT = 64
_RESTS = {"short": 1, "long": 64}
"""Rounds of the next back-off: in a long one a drafter leaves out what takes long to learn."""


def main(
    model: Annotated[str, typer.Option(help="folder, GGUF file, name or hub id")] = "jspec-7m",
    method: Annotated[str, typer.Option(help="with widths from 0 on")] = "auto",
    batch_sizes: Annotated[str, typer.Option(help="comma-separated")] = "1,4,8",
    dtypes: Annotated[str, typer.Option(help="of the weights, comma-separated")] = "float32",
    rounds: Annotated[int, typer.Option(min=1, help="timed together")] = 8,
    repeats: Annotated[int, typer.Option(min=1)] = 25,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Measures the median, and the quartiles, of a turn's rounds over plain decoding's in it."""
    headline(f"a round at rest over a plain one, {model}, {method}, {repeats} turns of {rounds}")
    table = Table("weights", "batch", "plain, ms", *(f"{name} back-off" for name in _RESTS))
    for dtype in dtypes.split(","):
        drafting = jspec.LLM(models.load(model, None, dtype, with_tokenizer=False), method)
        plain = LLM(drafting.target, drafter=jspec.Autoregressive())
        for size in map(int, batch_sizes.split(",")):
            most = rounds * (repeats + 1)
            runs = {"plain": _rounds(plain, _begun(plain, size, most), rounds)}
            for name, following in _RESTS.items():
                state = set_backoff(_begun(drafting, size, most), in_backoff=True)
                backoff = replace(state.policy_state.backoff, next=jnp.int32(following))
                known = replace(state.policy_state, backoff=backoff)
                runs[name] = _rounds(drafting, replace(state, policy_state=known), rounds)
            seconds = paired(runs, repeats)
            cells = [dtype, str(size), f"{1e3 * np.median(seconds['plain']) / rounds:.2f}"]
            for name in _RESTS:
                low, middle, high = np.quantile(seconds[name] / seconds["plain"], [0.25, 0.5, 0.75])
                cells.append(f"{middle:.3f} ({low:.3f} .. {high:.3f})")
            table.add_row(*cells)
            held = {"bench": "rest", "model": model, "method": method, "weights": dtype}
            held |= {"batch": size, "rounds": rounds}
            record(out, held | {f"{name}_seconds": one.tolist() for name, one in seconds.items()})
    console.print(table)


def _begun(llm: LLM, size: int, new_tokens: int) -> State:
    """Returns the state after prompts at random: shapes alone decide how long a round takes."""
    vocabulary = llm.model.vocab_size
    prompts = np.random.default_rng(0).integers(0, vocabulary, (size, _PROMPT), np.int32)
    return jspec.prefill(
        llm.model, llm.params, prompts, drafter=llm.drafter, drafter_params=llm.drafter_params,
        policy=llm.policy, policy_params=llm.policy_params, max_new_tokens=new_tokens,
    )  # fmt: skip


def _rounds(llm: LLM, state: State, rounds: int) -> Callable[[], Array]:
    """Returns a call that goes on by so many rounds each time."""

    def run() -> Array:
        nonlocal state
        drafting = Drafting(**llm.drafting)
        state = decode_rounds(llm.model, llm.params, state, drafting, jnp.int32(rounds))
        return state.root

    return run


if __name__ == "__main__":
    command(main)
