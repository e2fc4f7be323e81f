"""Logits processors and log-probabilities; grammars and stop strings lie alongside them."""

from jspec.processors import grammar
from jspec.processors.log_probabilities import logprobs
from jspec.processors.logits import (
    History,
    Processor,
    banned_sequences,
    banned_tokens,
    frequency_penalty,
    logit_bias,
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
    "grammar",
    "logit_bias",
    "logprobs",
    "own",
    "presence_penalty",
    "repetition_penalty",
]
