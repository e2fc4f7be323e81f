"""The output of `--json`: one object a line, and nothing else on standard output."""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from jspec.costs.metrics import Metrics
from jspec.models import reasoning
from jspec.models.detokenise import Detokeniser
from jspec.sessions.batches import Outcome, Runner, groups
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session


def write(session: Session, prompts: Sequence[list[int]], settings: RunSettings) -> None:
    """Runs the prompts and writes each group's lines as soon as it has finished."""
    runner = Runner(session, settings)
    about = {
        "model": session.name,
        "method": session.choice.method.name,
        "temperature": settings.request.temperature,
        "seed": settings.request.seed,
    }
    for group in groups(prompts, settings):
        for outcome in runner.run(group):
            # ASCII, so that it can be written whatever the encoding of the output is.
            row = record(outcome, session.target.tokenizer, session.marks)
            row = {"row": outcome.row} | row | about
            sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        runner.write()


def record(
    outcome: Outcome, tokenizer: Any, marks: reasoning.Marks | None = None
) -> dict[str, Any]:
    """Returns what a line says of one prompt."""
    text = Detokeniser(tokenizer, outcome.prompt).finish(
        outcome.tokens, outcome.stop_bytes, outcome.status
    )
    thoughts, text = reasoning.parts(tokenizer, marks, outcome.prompt).read(text, True)
    row = {
        "prompt_ids": outcome.prompt,
        "tokens": outcome.tokens,
        "text": text,
        "finish_reason": finish_reason(outcome.status),
        "seconds": outcome.seconds,
        "first_token_seconds": outcome.first_token_seconds,
        "metrics": outcome.metrics.as_dict(),
    }
    row |= {"reasoning_content": thoughts} if thoughts else {}
    return row | ({} if outcome.logprobs is None else {"logprobs": _logprobs(outcome)})


def _logprobs(outcome: Outcome) -> list[dict[str, Any]]:
    """Returns one object per token; JSON has no -inf, so what cannot be drawn is left out."""
    logprobs, entries = outcome.logprobs, []
    assert logprobs is not None
    emitted = logprobs.token_logprobs[0].tolist()
    for place, (token, logprob) in enumerate(zip(outcome.tokens, emitted, strict=True)):
        top = []
        if logprobs.top_logprobs is not None and logprobs.top_tokens is not None:
            best = logprobs.top_tokens[0, place].tolist(), logprobs.top_logprobs[0, place].tolist()
            pairs = zip(*best, strict=True)
            top = [
                {"token": token_id, "logprob": value}
                for token_id, value in pairs
                if value > -math.inf
            ]
        entries.append({"token": token, "logprob": logprob, "top_logprobs": top})
    return entries


def together(outcomes: Sequence[Outcome]) -> Metrics:
    """Returns the metrics of all outcomes as one run."""
    return sum((outcome.metrics for outcome in outcomes), Metrics())


def finish_reason(status: int) -> str:
    """Returns the word for why a row ended."""
    from jspec.types import Status

    return {
        Status.EOS: "stop",
        Status.LIMIT: "length",
        Status.CAPACITY: "capacity",
        Status.NAN: "nan",
        Status.STOP: "stop",
        Status.MASKED: "masked",
    }[Status(status)]
