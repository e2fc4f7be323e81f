"""The device of a `Scheduler`: a `jspec.Engine`, its weights, and the one state of all rows."""

import time
from collections.abc import Sequence
from typing import Any

import jax

from jspec import processors
from jspec.costs import metrics
from jspec.costs.measuring import in_turn, set_backoff
from jspec.decoding.engine import Engine
from jspec.models.lora import LoRAModel
from jspec.policies.cost_curve import CostCurve
from jspec.processors.grammar import Capacity
from jspec.serve.jobs import Delta, RowSettings, TokenLogprobs
from jspec.types import PyTree, Sampling, Stopping

NUM_BIASES = 300
"""Maximum size of a `logit_bias`, as in the OpenAI API; all are padded to it: one program."""
NUM_STOP_TOKENS = 8
"""Maximum number of `stop_token_ids` in a request."""


_REPEATS = 12
"""Times that each width is timed: a server goes by what it finds for long, and what else
runs on the machine makes single rounds of several milliseconds twice as long."""


class EngineDevice:
    """Rows of an engine."""

    def __init__(
        self,
        engine: Engine,
        params: PyTree,
        drafter_params: PyTree,
        eos: Sequence[int],
        rounds: int = 8,
        known: PyTree = None,
        policy_params: PyTree = None,
    ):
        self.engine = engine
        self._params = params
        self._drafter_params = drafter_params
        self._policy_params = policy_params
        self._eos = list(eos)
        self._rounds = rounds
        self._known = known
        self._state: Any = None
        self.reset()

    def memory(self) -> dict[str, int]:
        """Returns the bytes that the rows take."""
        return self.engine.memory(self._params, self._drafter_params, self._policy_params)

    @property
    def num_slots(self) -> int:
        return self.engine.num_slots

    def read(self, tokens: Sequence[int], settings: RowSettings, earlier: Any) -> Any:
        """Returns the state of one row behind more tokens of its prompt."""
        model, params = self.engine.model, self._params
        if isinstance(model, LoRAModel):
            params = model.choose(params, [settings.adapter])
        return self.engine.prefill(
            params,
            tokens,
            drafter_params=self._drafter_params,
            policy_params=self._policy_params,
            earlier=earlier,
            **self._arguments(settings),
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
        found = []
        for row in rows:
            count = counts[row]
            ended = status[row] != 0
            found.append(
                Delta(
                    tokens[row, :count].tolist(),
                    status[row],
                    0 if output.stop_bytes is None else int(output.stop_bytes[row]),
                    log_probabilities(output.logprobs, row, count),
                    metrics.of_row(output.stats, row) if ended else None,
                )
            )
        return found

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

    def costs(self, text: Sequence[int]) -> CostCurve:
        """Measures what a round of all rows costs at each width of a policy that chooses them.

        With the programs that answer, which have room for all that requests may ask for, and with
        greedy rows: the noise of rows that draw takes as long at every width, so that wide rounds
        would look cheaper alongside narrow ones than they are without it. All rows are free
        afterwards.
        """
        settings = RowSettings(self.engine.capacity - len(text), ignore_eos=True)
        arrival = self.read(text, settings, None)

        def timed(curve: CostCurve, in_backoff: bool, rounds: int) -> float:
            del rounds  # as many as in every call
            for row in range(self.num_slots):
                self.insert(row, arrival)
            state = jax.block_until_ready(set_backoff(self._state, in_backoff))
            began = time.perf_counter()
            self._state, output = self.engine.generate(
                self._params, state, drafter_params=self._drafter_params, policy_params=curve,
                rounds=self._rounds,
            )  # fmt: skip
            jax.block_until_ready(output.tokens)
            return (time.perf_counter() - began) / max(int(output.stats.num_rounds.max()), 1)

        curve = in_turn(self.engine.policy.widths, self.num_slots, timed, repeats=_REPEATS)
        self.reset()
        return curve

    @property
    def has_costs(self) -> bool:
        """True if the policy uses the costs of rounds."""
        return isinstance(self._policy_params, CostCurve)

    def goes_by(self, curve: CostCurve) -> None:
        """Sets the cost curve by which the policy chooses widths from now on."""
        self._policy_params = curve

    def _arguments(self, asked: RowSettings) -> dict[str, Any]:
        return dict(
            stopping=Stopping(
                max_tokens=asked.limit,
                min_tokens=asked.min_tokens or None,
                eos=() if asked.ignore_eos else self._eos,
                stop_token_ids=list(asked.stop_token_ids),
                stop=asked.stop,
            ),
            sampling=Sampling(asked.temperature, asked.top_k, asked.top_p, asked.min_p),
            key=asked.seed,
            row_id=asked.row,
            processors=given(self.engine.processors, asked),
        )


def given(places: Sequence[Any], asked: RowSettings) -> list[Any]:
    """Returns a row's processors in the engine's places; None: nothing."""
    own = {one.function: one for one in processors_of(asked)}

    def at(place: Any) -> Any:
        if isinstance(place, processors.Processor):
            return own.get(place.function, place)
        if isinstance(place, Capacity):
            return asked.grammar
        return place if asked.logprobs else None

    return [at(place) for place in places]


def processors_of(asked: RowSettings) -> tuple[processors.Processor, ...]:
    """Returns the processors of a row: the same functions for all of them."""
    return (
        processors.repetition_penalty(asked.repetition_penalty),
        processors.frequency_penalty(asked.frequency_penalty),
        processors.presence_penalty(asked.presence_penalty),
        processors.logit_bias(asked.logit_bias, capacity=NUM_BIASES),
    )


def log_probabilities(known: Any, row: int, count: int) -> TokenLogprobs | None:
    """Returns a row's tokens of one step, from the output of all rows."""
    if known is None:
        return None
    # Copies: an answer keeps its own, and not what all rows have got in each of its steps.
    parts = known.token_logprobs, known.top_tokens, known.top_logprobs
    return TokenLogprobs(*(part if part is None else part[row, :count].copy() for part in parts))
