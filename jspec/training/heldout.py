"""Scores of an objective on text that was not trained on."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from jspec.training.loop import Metrics, Objective
from jspec.types import PyTree


def metrics(
    objective: Objective, params: PyTree, frozen: PyTree, batches: Iterable[tuple[PyTree, int]]
) -> dict[str, Any]:
    """Returns loss and metrics of an objective over batches, each weighted by its tokens."""
    sums: dict[str, Any] = {}
    tokens = 0
    for batch, count in batches:
        loss, scores = jax.device_get(_score(objective, params, frozen, batch))
        for name, value in {"loss": loss, **scores}.items():
            array = np.asarray(value, np.float64)
            reached = np.cumprod(array) if name == "acceptance" else array
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
