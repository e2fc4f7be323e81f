"""Scores of a model on text that it was not trained on."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec.protocols import CausalLM
from jspec.training import lm
from jspec.training.loop import Metrics, Objective
from jspec.training.packing import Encode
from jspec.types import PyTree


@dataclass(frozen=True)
class Score:
    """Sums over a text; the two usual figures follow."""

    nats: float
    tokens: int
    bytes: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text, comparable between tokenizers."""
        return self.nats / math.log(2) / self.bytes


def evaluate(
    model: CausalLM,
    params: PyTree,
    texts: Sequence[str],
    encode: Encode,
    end: int,
    length: int,
    batch: int = 8,
) -> Score:
    """Scores every token of the texts once, the end tokens between them included.

    The stream is cut to sequences of `length` tokens that do not see each other, as in training.
    """
    stream = [end] + [token for text in texts for token in (*encode(text), end)]
    count = len(stream) - 1
    rows = -(-count // length)
    rows += -rows % batch
    tokens = np.full(rows * length + 1, end, np.int32)
    tokens[: len(stream)] = stream
    starts = np.arange(rows)[:, None] * length
    sequences = tokens[starts + np.arange(length + 1)]
    live = (starts + np.arange(length)) < count
    nats = sum(
        float(total(model, params, live[i : i + batch], sequences[i : i + batch]))
        for i in range(0, rows, batch)
    )
    return Score(nats, count, sum(len(text.encode()) for text in texts))


@partial(jax.jit, static_argnames="model")
def total(
    model: CausalLM,
    params: PyTree,
    live: Bool[Array, "B T"],
    sequences: Int[Array, "B T+1"],
) -> Float[Array, ""]:
    return (lm.losses(model, params, sequences) * live).sum()


def metrics(
    objective: Objective, params: PyTree, frozen: PyTree, batches: Iterable[tuple[PyTree, int]]
) -> dict[str, Any]:
    """Loss and metrics of an objective over batches, each weighted by its tokens.

    `acceptance`, which is given that all draft steps before were accepted, is averaged as the share
    of tokens that get so far: few batches have many of the late steps.

    Args:
        batches: what the objective reads, with the number of tokens in it.
    """
    sums: dict[str, Any] = {}
    tokens = 0
    for batch, count in batches:
        loss, told = jax.device_get(_score(objective, params, frozen, batch))
        for name, value in {"loss": loss, **told}.items():
            whole = np.asarray(value, np.float64)
            reached = np.cumprod(whole) if name == "acceptance" else whole
            sums[name] = sums.get(name, 0.0) + reached * count
        tokens += count
    means = {name: value / tokens for name, value in sums.items()}
    if "acceptance" in means:
        reached = means["acceptance"]
        before = np.concatenate([[1.0], reached[:-1]])
        means["acceptance"] = reached / np.where(before > 0, before, 1.0)
    return {
        **{name: np.round(value, 4).tolist() for name, value in means.items()},
        "tokens": tokens,
    }


@partial(jax.jit, static_argnames="objective")
def _score(
    objective: Objective, params: PyTree, frozen: PyTree, batch: PyTree
) -> tuple[Float[Array, ""], Metrics]:
    return objective.loss(params, frozen, batch)
