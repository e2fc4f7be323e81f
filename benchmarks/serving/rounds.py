"""What a server's round takes beside plain decoding: in a back-off, with a draft, at each width.

python -m benchmarks.serving.rounds                        # the bundled jspec-7m, 8 rows
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import jax
import numpy as np
import typer

import jspec
from benchmarks.harness import command, console, headline
from jspec.costs.measuring import set_backoff
from jspec.drafters.adaptive import Adaptive
from jspec.methods.grammars import with_jump_forward
from jspec.methods.registry import METHODS
from jspec.serve import launch
from jspec.serve.device import given
from jspec.serve.jobs import RowSettings
from jspec.sessions import session as sessions
from jspec.sessions.method_choice import Choice

PLAIN = "autoregressive"
_PROMPT, _ROUNDS = 32, 8
_FAR = 1e6
"""Seconds of a width that is not to be chosen."""


def main(
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    method: Annotated[str, typer.Option(help="one that chooses its widths")] = "auto",
    rows: Annotated[int, typer.Option(min=1)] = 8,
    room: Annotated[int, typer.Option(min=128, help="tokens of a row")] = 128,
    repeats: Annotated[int, typer.Option(min=1)] = 15,
) -> None:
    """In one process and in turn; greedy rows, with room for all that a request may ask for."""
    headline(f"{model}, {method}: rounds of {rows} rows of {room} tokens")
    plain, other = (Rows(model, name, rows, room) for name in (PLAIN, method))
    ways: dict[str, Callable[[], float]] = {
        PLAIN: lambda: plain.round(0, False),
        "in a back-off": lambda: other.round(0, True),
    }
    for width in other.widths:
        ways[f"drafted, width {width}"] = lambda width=width: other.round(width, False)
    requests = {f"a request, {PLAIN}": plain.request, f"a request, {method}": other.request}
    ways |= requests
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 2):
        for name, way in ways.items():
            taken = 1000 * way()
            if repeat > 1:  # what came before compiles
                times[name].append(taken)
    for name, taken in times.items():
        beside = times[next(iter(requests)) if name in requests else PLAIN]
        ratio = np.median(np.array(taken) / np.array(beside))
        console.print(f"{name:28} {np.median(taken):7.3f} ms, least {min(taken):7.3f}: {ratio:.3f}")


class Rows:
    """The rows of a server, which are timed."""

    def __init__(self, model: str, method: str, rows: int, room: int):
        choice = launch.narrowed(Choice(METHODS[method], {}), rows)
        session = sessions.start(model, None, choice, None)
        settings = launch.ServeSettings(model, rows=rows, max_model_len=room)
        self._engine = launch.device_of(session, settings)[0].engine
        self._params = session.target.params
        self._weights: Any = session.built.drafter_params
        self.widths = (0,)
        if isinstance(drafter := session.built.drafter, Adaptive):
            self._weights = with_jump_forward(drafter, self._weights)[1]
            self.widths = drafter.widths
        self._state = self._engine.init(self._params, self._weights)
        rng = np.random.default_rng(0)
        self._prompt = rng.integers(0, session.target.model.vocab_size, _PROMPT)

    def _arrival(self) -> Any:
        return self._engine.prefill(
            self._params,
            self._prompt,
            drafter_params=self._weights,
            sampling=jspec.Sampling(0.0),
            key=0,
            processors=given(self._engine.processors, RowSettings()),
        )

    def request(self) -> float:
        """Seconds in which a prompt is read and put into a row."""
        began = time.perf_counter()
        self._state = self._engine.insert(self._state, 0, self._arrival())
        jax.block_until_ready(self._state.root)
        return time.perf_counter() - began

    def round(self, width: int, in_backoff: bool) -> float:
        """Seconds of a round when all rows have come: the least of some calls."""
        arrival, least, weights = self._arrival(), [], self._weights
        rows = self._engine.num_slots
        for row in range(rows):
            self._state = self._engine.insert(self._state, row, arrival)
        for _ in range(3):
            state = self._state
            if len(self.widths) > 1:
                points = {rows * (1 + one): 1.0 if one == width else _FAR for one in self.widths}
                weights = replace(weights, costs=jspec.CostCurve.of(points))
                state = set_backoff(state, in_backoff)
            jax.block_until_ready(state.root)
            began = time.perf_counter()
            self._state, output = self._engine.generate(
                self._params, state, drafter_params=weights, rounds=_ROUNDS
            )
            jax.block_until_ready(output.tokens)
            least.append((time.perf_counter() - began) / _ROUNDS)
        return min(least)


if __name__ == "__main__":
    command(main)
