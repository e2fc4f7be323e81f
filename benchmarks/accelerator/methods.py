"""Methods on real text: tokens per round and speed, in turn with plain decoding."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import jspec
from benchmarks.accelerator import texts
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale
from benchmarks.harness import paired
from jspec import methods as known
from jspec import models
from jspec._validate.errors import InputError
from jspec.models import Loaded

PROMPT_TOKENS = 48


@lru_cache(maxsize=1)
def loaded(name: str, dtype: str | None = None) -> Loaded:
    """A model of a folder, a bundled one, or one of the hub; loaded once."""
    return models.load(name, dtype)


def find(cells: Cells, name: str, dtype: str | None = None) -> Loaded | None:
    """A model; None, with a sentence, if it is not there."""
    try:
        return loaded(name, dtype)
    except (InputError, OSError) as reason:
        cells.skip(f"{Path(name).name}: {reason}")
        return None


def build(cells: Cells, method: str, target: Loaded, name: str) -> known.LLM | None:
    """A method for a model of some name; None, with a sentence, if that cannot be."""
    if method not in known.names():
        cells.skip(f"{method} on {name}: the library has no method of that name")
        return None
    try:
        return known.build(method, target)
    except InputError as reason:
        cells.skip(f"{method} on {name}: {reason}")
        return None


def measure(cells: Cells, scale: Scale) -> None:
    """One row for each model and method: all prompts, greedily, one by one.

    A drafter's state goes from prompt to prompt, as in service.
    """
    for name in scale.models:
        short = Path(name).name
        if (target := find(cells, name)) is None:
            continue
        prompts = texts.encoded(target, scale.prompts, PROMPT_TOKENS)
        for method in scale.methods:
            if (built := build(cells, method, target, short)) is None:
                continue

            def row(target: Loaded = target, built: Any = built, prompts: Any = prompts) -> dict:
                return _compare(target, built, prompts, scale)

            cells.run(row, model=short, method=method, prompts=texts.source())


def _compare(target: Loaded, built: known.LLM, prompts: np.ndarray, scale: Scale) -> dict:
    seconds, plain_seconds, tokens, rounds, differing = [], [], 0, 0, 0
    state = None
    for prompt in prompts:

        def decode(prompt: np.ndarray = prompt, **how: Any) -> jspec.Result:
            return jspec.decode(
                built.model, target.params, prompt[None], max_new_tokens=scale.new_tokens, **how
            )

        def drafted(state: Any = state, decode: Any = decode) -> jspec.Result:
            known = dict(drafter_state=state.drafter_state, policy_state=state.policy_state)
            return decode(**built.drafting, **(known if state else {}))

        runs = {"plain": lambda decode=decode: decode().tokens, "drafted": lambda: drafted().tokens}
        taken = paired(runs, scale.repeats)
        result, plain = drafted(), decode()
        seconds.append(taken["drafted"].tolist())
        plain_seconds.append(taken["plain"].tolist())
        tokens += int(result.lengths[0])
        rounds += int(result.stats.num_rounds[0])
        differing += result.tokens.tolist() != plain.tokens.tolist()
        state = result
    return {
        "dtype": np.dtype(target.model.dtype).name,
        "tokens": tokens,
        "rounds": rounds,
        "seconds": seconds,
        "plain_seconds": plain_seconds,
        "new_tokens": scale.new_tokens,
        "num_prompts": len(prompts),
        "differing": differing,
    }
