"""Lossless speculative decoding for JAX as one pure function: `jspec.decode`."""

from jspec import rules, sampling, tree, verify
from jspec.base import (
    Cache,
    CausalLM,
    Drafter,
    Feedback,
    NodeRule,
    Output,
    Result,
    Round,
    Sampling,
    State,
    Stats,
    Status,
    Tree,
    Verdict,
    Verifier,
)
from jspec.drafters.autoregressive import Autoregressive
from jspec.engine import Chunk, decode, prefill, step, stream
from jspec.tree import Template
