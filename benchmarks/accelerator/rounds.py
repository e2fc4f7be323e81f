"""Whole rounds in the loop of `decode`, plain and with forced acceptance, and their compiling."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from benchmarks.accelerator import forced, kernels
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale, random_state
from benchmarks.accelerator.timing import compiled
from benchmarks.harness import paired

# The loop of `decode` by itself. Its prefill would have to be compiled for every drafter, which
# takes as long again and has nothing to say here.
from jspec.decoding import decode_rounds
from jspec.protocols import CausalLM, Drafter
from jspec.types import PyTree

SECTION = "rounds"
FEW = 2
"""Rounds of the shorter sample: what a call costs besides its rounds cancels in the difference."""
TOKENS_PER_ROUND = (2, 3, 4, 5)


class Loop:
    """The compiled loop of rounds of a model and a drafter, and a state that it goes round with."""

    def __init__(
        self, model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree,
        batch: int, scale: Scale, options: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        self.params, self.drafter_params, self.past = params, drafter_params, scale.past
        self.state = random_state(
            model, params, drafter, drafter_params, batch, scale.past, scale.capacity
        )
        self.program = compiled(
            decode_rounds, model, params, self.state, drafter, drafter_params, np.int32(FEW),
            options=options, is_loop=True,
        )  # fmt: skip
        self.kernels = kernels.count(self.program.text)

    def run(self, num_rounds: int, drafter_params: PyTree = None) -> jax.Array:
        """The tokens that each row emits in so many rounds from the state's beginning."""
        state, batch = self.state, len(self.state.root)
        start = replace(
            state,
            memory=replace(state.memory, lengths=jnp.full(batch, self.past, jnp.int32)),
            positions=jnp.full(batch, self.past, jnp.int32),
            lengths=jnp.zeros(batch, jnp.int32),
            status=jnp.zeros(batch, jnp.int32),
        )
        given = self.drafter_params if drafter_params is None else drafter_params
        # Donated: the cache is held once, and the next call goes on with what this one returns.
        self.state = self.program.run(self.params, start, given, np.int32(num_rounds))
        return self.state.lengths


def per_round(loops: Mapping[str, tuple[Loop, PyTree]], scale: Scale) -> dict[str, dict[str, Any]]:
    """Seconds and tokens of a round of each loop with its drafter's weights, taken in turn."""
    many = scale.num_rounds + FEW
    runs = {
        (name, count): lambda loop=loop, given=given, count=count: loop.run(count, given)
        for name, (loop, given) in loops.items()
        for count in (FEW, many)
    }
    seconds = paired(runs, scale.repeats)
    found = {}
    for name, (loop, given) in loops.items():
        emitted = loop.run(many, given)
        rounds = (seconds[name, many] - seconds[name, FEW]) / scale.num_rounds
        found[name] = {
            "seconds": rounds.tolist(),
            "tokens_per_round": float(emitted.mean()) / many,
        }
    return found


def about(loop: Loop) -> dict[str, Any]:
    """What a row says of a loop's program."""
    return {
        "trace_seconds": loop.program.trace_seconds,
        "compile_seconds": loop.program.compile_seconds,
        "kernels": loop.kernels,
    }


def measure(cells: Cells, scale: Scale) -> None:
    """One row for plain decoding and for each forced acceptance, at each batch."""

    @lru_cache(maxsize=2)
    def plain(batch: int) -> Loop:
        return Loop(scale.model, scale.params, jspec.Autoregressive(), None, batch, scale)

    @lru_cache(maxsize=1)
    def tree(batch: int) -> Loop:
        drafter = forced.drafter(scale.config.vocab_size, scale.nodes)
        script = forced.script(batch, TOKENS_PER_ROUND[0])
        return Loop(scale.model, scale.params, drafter, script, batch, scale)

    for batch in scale.round_batches:

        def alone(batch: int = batch) -> dict:
            loop = plain(batch)
            return {**about(loop), **per_round({"plain": (loop, None)}, scale)["plain"]}

        cells.run(alone, method="plain", batch=batch, forced=None)
        for tokens in TOKENS_PER_ROUND:

            def both(batch: int = batch, tokens: int = tokens) -> dict:
                script = forced.script(batch, tokens)
                loops = {"plain": (plain(batch), None), "forced": (tree(batch), script)}
                found = per_round(loops, scale)
                pairs = zip(found["plain"]["seconds"], found["forced"]["seconds"], strict=True)
                gains = [found["forced"]["tokens_per_round"] * one / other for one, other in pairs]
                return {
                    **about(tree(batch)),
                    **found["forced"],
                    "nodes": scale.nodes,
                    "plain_seconds": found["plain"]["seconds"],
                    "gains": gains,
                }

            cells.run(both, method="forced", batch=batch, forced=tokens)
