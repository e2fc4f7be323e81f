"""The output of `--json`: one object a line, and nothing else on standard output."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from jspec.app.batches import Outcome, Runner, groups
from jspec.app.detokenise import Detokeniser, Tokenizer
from jspec.app.run_settings import RunSettings
from jspec.app.sessions import Session
from jspec.metrics import Metrics


def write(session: Session, prompts: Sequence[list[int]], settings: RunSettings) -> None:
    """Runs the prompts and writes each group's lines as soon as it has finished."""
    runner = Runner(session, settings)
    for group in groups(prompts, settings):
        for outcome in runner.run(group):
            # ASCII, so that it can be written whatever the encoding of the output is.
            sys.stdout.write(json.dumps(record(outcome, session.target.tokenizer)) + "\n")
        sys.stdout.flush()


def record(outcome: Outcome, tokenizer: Tokenizer) -> dict[str, Any]:
    """The object of one line."""
    return {
        "prompt_ids": outcome.prompt,
        "tokens": outcome.tokens,
        "text": Detokeniser(tokenizer, outcome.prompt).finish(outcome.tokens),
        "finish_reason": finish_reason(outcome.status),
        "seconds": outcome.seconds,
        "metrics": outcome.metrics.as_dict(),
    }


def together(outcomes: Sequence[Outcome]) -> Metrics:
    """The metrics of all outcomes as one run."""
    return sum((outcome.metrics for outcome in outcomes), Metrics())


def finish_reason(status: int) -> str:
    """The word for why a row ended."""
    from jspec.base import Status

    return {
        Status.EOS: "stop",
        Status.LIMIT: "length",
        Status.CAPACITY: "capacity",
        Status.NAN: "nan",
    }[Status(status)]
