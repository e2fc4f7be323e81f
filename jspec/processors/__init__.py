"""Logits processors; grammars, stop strings and log-probabilities lie beside them."""

from jspec.processors.logits import (
    History,
    Processor,
    banned_sequences,
    banned_tokens,
    frequency_penalty,
    logit_bias,
    min_tokens,
    own,
    presence_penalty,
    repetition_penalty,
)

__all__ = [
    "History",
    "Processor",
    "banned_sequences",
    "banned_tokens",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "own",
    "presence_penalty",
    "repetition_penalty",
]
