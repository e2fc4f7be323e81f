"""The device of a `Scheduler`: a `jspec.Engine`, its weights, and the one state of all rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from jspec.costs import metrics
from jspec.decoding.engine import Engine
from jspec.models.lora import LoRAModel
from jspec.request import Request
from jspec.serve.jobs import PROMPT, Delta, TokenLogprobs
from jspec.types import PyTree

NUM_BIASES = 300
"""Maximum size of a `logit_bias`, as in the OpenAI API; all are padded to it: one program."""
NUM_STOP_TOKENS = 8
"""Maximum number of `stop_token_ids` in a request."""


class EngineDevice:
    """Rows of an engine."""

    def __init__(
        self,
        engine: Engine,
        params: PyTree,
        drafter_params: PyTree,
        eos: Sequence[int],
        rounds: int = 8,
        drafter_state: PyTree = None,
        policy_params: PyTree = None,
    ):
        self.engine = engine
        self._params = params
        self._drafter_params = drafter_params
        self._policy_params = policy_params
        self._eos = list(eos)
        self._rounds = rounds
        self._known = drafter_state
        self._state: Any = None
        self.reset()

    def memory(self) -> dict[str, int]:
        """Returns the bytes that the rows take."""
        return self.engine.memory(self._params, self._drafter_params, self._policy_params)

    @property
    def num_slots(self) -> int:
        return self.engine.num_slots

    def read(self, tokens: Sequence[int], request: Request, earlier: Any, adapter: int = 0) -> Any:
        """Returns the state of one row behind more tokens of its prompt."""
        model, params = self.engine.model, self._params
        if isinstance(model, LoRAModel):
            params = model.choose(params, [adapter])
        return self.engine.prefill(
            params,
            tokens,
            replace(request, eos=self._eos) if request.eos is None else request,
            drafter_params=self._drafter_params,
            policy_params=self._policy_params,
            earlier=earlier,
        )

    def insert(self, row: int, arrival: Any) -> None:
        """Puts a state of one row into a row."""
        self._state = self.engine.insert(self._state, row, arrival)

    def free(self, row: int) -> None:
        """Releases a row."""
        self._state = self.engine.free(self._state, row)

    def take(self, row: int) -> Any:
        """Returns a copy of a row as a state of one row."""
        return self.engine.take(self._state, row)

    def copy(self, arrival: Any) -> Any:
        """Returns a copy of a state of one row."""
        return self.engine.take(arrival, 0)

    def step(self, waiting: bool) -> Any:
        """Returns some rounds of all rows, and their output on the host."""
        self._state, output = self.engine.generate(
            self._params,
            self._state,
            drafter_params=self._drafter_params,
            policy_params=self._policy_params,
            rounds=self._rounds,
            until_one_ends=waiting,
        )
        return jax.device_get(output)

    def deltas(self, output: Any, rows: Sequence[int]) -> list[Delta]:
        """Returns what these rows have written."""
        counts, status, tokens = output.counts.tolist(), output.status.tolist(), output.tokens
        deltas = []
        for row in rows:
            count = counts[row]
            ended = status[row] != 0
            deltas.append(
                Delta(
                    tokens[row, :count].tolist(),
                    status[row],
                    0 if output.stop_bytes is None else int(output.stop_bytes[row]),
                    log_probabilities(output.logprobs, row, count),
                    metrics.of_row(output.stats, row) if ended else None,
                )
            )
        return deltas

    def reset(self) -> None:
        """Frees all rows."""
        self._state = None  # before the next one is made: there is room for one
        self._state = self.engine.init(
            self._params, self._drafter_params, self._known, self._policy_params
        )

    @property
    def learnt(self) -> PyTree:
        """The drafter's memory as it is now."""
        return self._state.drafter_state

    def warm_up(self) -> int:
        """Compiles all that will run. Returns the bytes of a text that is kept."""
        row_bytes = 0
        seeds = (1, -1, 2**40)  # they are made into keys in different ways
        for turn, seed in enumerate((*seeds, *seeds)):
            request = Request(max_tokens=2, temperature=1.0, seed=seed, stop_token_ids=(0,))
            state = self.read([0, 1], PROMPT, None)
            prefix = self.copy(state)
            row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(prefix))
            self.insert(0, self.read([1], request, state))
            self.insert(self.num_slots - 1, self.read([1, 2], request, None))
            self.deltas(self.step(waiting=turn % 2 == 0), [0])
            self.insert(0, self.read([3], request, self.take(0)))
            self.insert(0, self.read([3], request, self.copy(prefix)))
            self.free(0)
            self.deltas(self.step(waiting=False), [0])
        self.reset()
        return row_bytes


def log_probabilities(logprobs: Any, row: int, count: int) -> TokenLogprobs | None:
    """Returns a row's tokens of one step, from the output of all rows."""
    if logprobs is None:
        return None
    # Copies: an answer keeps its own, and not what all rows have got in each of its steps.
    parts = logprobs.token_logprobs, logprobs.top_tokens, logprobs.top_logprobs
    return TokenLogprobs(*(part if part is None else part[row, :count].copy() for part in parts))
