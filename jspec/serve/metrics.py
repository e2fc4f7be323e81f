"""The figures of /metrics, under the names that vLLM gave them."""

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from jspec.costs.metrics import Metrics
from jspec.serve.errors import APIError
from jspec.serve.jobs import Job
from jspec.serve.scheduler import Scheduler
from jspec.serve.workers import Workers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    25,
    60,
    120,
    300,
)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class ServerMetrics:
    """The figures of a server."""

    def __init__(
        self,
        scheduler: Scheduler,
        model: str,
        compiled: Callable[[], int],
        workers: Mapping[str, Workers],
    ):
        self._registry = CollectorRegistry()
        self._model = model
        self._gauges(scheduler, compiled, workers)
        self._refused = self._make(
            Counter, "jspec:requests_refused", "Requests that got an error.", ("status", "code")
        )
        self._prompt_tokens = self._make(
            Counter, "vllm:prompt_tokens", "Tokens of prompts that were read."
        )
        self._written = self._make(
            Counter, "vllm:generation_tokens", "Tokens of answers that were written."
        )
        self._ended = self._make(
            Counter, "vllm:request_success", "Answers that ended.", ("finished_reason",)
        )
        self._drafts = self._make(
            Counter, "vllm:spec_decode_num_drafts", "Rounds that verified a draft."
        )
        self._drafted = self._make(
            Counter, "vllm:spec_decode_num_draft_tokens", "Drafted tokens that were verified."
        )
        self._accepted = self._make(
            Counter, "vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."
        )
        self._accepted_at = self._make(
            Counter,
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafts with so many accepted tokens or more.",
            ("position",),
        )
        self._first = self._make(
            Histogram, "vllm:time_to_first_token_seconds", "From request to first token.", (),
            _SECONDS,
        )  # fmt: skip
        self._between = self._make(
            Histogram, "vllm:inter_token_latency_seconds", "Time per token, mean of a delta.", (),
            _SECONDS,
        )  # fmt: skip
        self._per_token = self._make(
            Histogram, "vllm:request_time_per_output_token_seconds",
            "Time per token after the first, mean of an answer.", (), _SECONDS,
        )  # fmt: skip
        self._whole = self._make(
            Histogram, "vllm:e2e_request_latency_seconds", "From request to last token.", (),
            _SECONDS,
        )  # fmt: skip
        self._queue = self._make(
            Histogram, "vllm:request_queue_time_seconds", "From request to a row.", (), _SECONDS
        )
        self._prompt_sizes = self._make(
            Histogram, "vllm:request_prompt_tokens", "Tokens of a prompt.", (), _TOKENS
        )
        self._answer_sizes = self._make(
            Histogram, "vllm:request_generation_tokens", "Tokens of an answer.", (), _TOKENS
        )

    def render(self) -> bytes:
        """Returns all figures, in Prometheus' format."""
        return generate_latest(self._registry)

    def count_error(self, error: APIError) -> None:
        """Counts a request that got an error."""
        self._refused.labels(self._model, str(error.status), error.code or "").inc()

    def wrote(self, tokens: int, seconds: float | None) -> None:
        """Counts the tokens of a delta."""
        self._written.inc(tokens)
        if seconds is not None:
            self._between.observe(seconds / tokens)

    def count_answer(self, job: Job, tokens: int, reason: str, rounds: Metrics) -> None:
        """Counts an answer that has ended."""
        self._ended.labels(self._model, reason).inc()
        self._prompt_tokens.inc(len(job.prompt))
        self._prompt_sizes.observe(len(job.prompt))
        self._answer_sizes.observe(tokens)
        self._drafts.inc(rounds.num_drafts)
        self._drafted.inc(rounds.num_draft_tokens)
        self._accepted.inc(rounds.num_accepted_tokens)
        for place, count in enumerate(rounds.num_accepted_tokens_per_pos):
            self._accepted_at.labels(self._model, str(place)).inc(count)
        if job.started_at is not None:
            self._queue.observe(job.started_at - job.submitted_at)
        if job.ended_at is None:
            return
        self._whole.observe(job.ended_at - job.submitted_at)
        if job.first_at is not None:
            self._first.observe(job.first_at - job.submitted_at)
            if tokens > 1:
                self._per_token.observe((job.ended_at - job.first_at) / (tokens - 1))

    def _make(
        self, kind: Any, name: str, text: str, labels: tuple[str, ...] = (), buckets: Any = None
    ) -> Any:
        """Returns a figure with the model's name as its label."""
        more = {} if buckets is None else {"buckets": buckets}
        figure = kind(name, text, ("model_name", *labels), registry=self._registry, **more)
        return figure if labels else figure.labels(self._model)

    def _gauges(
        self,
        scheduler: Scheduler,
        compiled: Callable[[], int],
        workers: Mapping[str, Workers],
    ) -> None:
        figures = scheduler.figures
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("vllm:num_requests_running", "Rows that write.", lambda: scheduler.num_running),
            ("vllm:num_requests_waiting", "Jobs that wait.", lambda: scheduler.num_waiting),
            (
                "vllm:kv_cache_usage_perc",
                "Rows that are in use, 1 is all.",
                lambda: scheduler.num_running / max(scheduler.num_slots, 1),
            ),
            (
                "vllm:prefix_cache_queries_total",
                "Tokens of prompts.",
                lambda: figures.prompt_tokens,
            ),
            (
                "vllm:prefix_cache_hits_total",
                "Tokens of prompts that were known.",
                lambda: figures.reused_tokens,
            ),
            ("jspec:device_calls_total", "Calls of some rounds.", lambda: figures.steps),
            ("jspec:step_seconds_total", "Seconds in these.", lambda: figures.step_seconds),
            ("jspec:read_seconds_total", "Seconds with prompts.", lambda: figures.read_seconds),
            (
                "jspec:host_seconds_total",
                "Seconds between calls of the device while rows were running.",
                lambda: figures.host_seconds,
            ),
            ("jspec:compiled_programs_total", "Programs that were compiled.", compiled),
        )
        for name, text, value in gauges:
            self._make(Gauge, name, text).set_function(value)
        for what, some in workers.items():
            gauge = self._make(Gauge, f"jspec:{what}_running", f"Requests: {what}, at work.")
            gauge.set_function(lambda some=some: some.num_busy)
            gauge = self._make(Gauge, f"jspec:{what}_waiting", f"Requests: {what}, that wait.")
            gauge.set_function(lambda some=some: some.num_waiting)
