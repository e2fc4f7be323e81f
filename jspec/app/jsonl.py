"""`--json`: one object a line on standard output, and nothing else there."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from jspec.app.batches import Outcome, Runner, groups
from jspec.app.detokenise import Detokeniser, Tokenizer
from jspec.app.sessions import Session
from jspec.app.settings import Settings


def write(session: Session, prompts: Sequence[list[int]], settings: Settings) -> None:
    """Runs the prompts and writes each group's lines as soon as it has finished."""
    runner = Runner(session, settings)
    for group in groups(prompts, settings):
        for outcome in runner.run(group):
            # ASCII, so that it can be written whatever the encoding of the output is.
            sys.stdout.write(json.dumps(record(outcome, session.target.tokenizer)) + "\n")
        sys.stdout.flush()


def record(outcome: Outcome, tokenizer: Tokenizer) -> dict[str, Any]:
    """What one line holds."""
    return {
        "prompt_ids": outcome.prompt,
        "tokens": outcome.tokens,
        "text": Detokeniser(tokenizer, outcome.prompt).finish(outcome.tokens),
        "finish_reason": finish_reason(outcome.status),
        "seconds": outcome.seconds,
        "metrics": {
            "mean_acceptance_length": mean_acceptance_length([outcome]),
            "num_rounds": outcome.steps,
            "num_draft_tokens": outcome.drafted,
            "num_accepted_draft_tokens": outcome.accepted,
            "acceptance_histogram": outcome.histogram,
        },
    }


def mean_acceptance_length(outcomes: Sequence[Outcome]) -> float:
    """Tokens per target forward, the bonus included; 0 if there was none."""
    steps = sum(outcome.steps for outcome in outcomes)
    return sum(outcome.steps + outcome.accepted for outcome in outcomes) / max(steps, 1)


def finish_reason(status: int) -> str:
    """Why a row ended."""
    from jspec.base import Status

    return {
        Status.EOS: "stop",
        Status.LIMIT: "length",
        Status.CAPACITY: "capacity",
        Status.NAN: "nan",
    }[Status(status)]
