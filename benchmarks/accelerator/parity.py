"""Are the drafted tokens those of plain decoding, in float32, in TF32 and in bfloat16?"""

from functools import lru_cache
from pathlib import Path

import jax
import numpy as np

import jspec
from benchmarks.accelerator import texts
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.methods import PROMPT_TOKENS, build, find, loaded
from benchmarks.accelerator.shapes import Scale
from jspec import methods as known

Sizes = tuple[str, str, str, int, int]
"""Model, dtype, precision, number of prompts, new tokens."""


@lru_cache(maxsize=1)
def _plain(sizes: Sizes) -> np.ndarray:
    return _decode(sizes, known.build("autoregressive", loaded(*sizes[:2])))


def _decode(sizes: Sizes, built: known.LLM) -> np.ndarray:
    """The tokens of all prompts, decoded greedily as one batch."""
    name, dtype, precision, count, new_tokens = sizes
    target = loaded(name, dtype)
    prompts = texts.encoded(target, count, PROMPT_TOKENS)
    with jax.default_matmul_precision(precision):
        result = jspec.decode(
            built.model, target.params, prompts, **built.drafting, max_new_tokens=new_tokens,
        )  # fmt: skip
    return np.asarray(result.tokens)


def measure(cells: Cells, scale: Scale) -> None:
    """One row for each setting and method: the sequences that differ, and where they begin to."""
    name, short = scale.models[0], Path(scale.models[0]).name
    for dtype, precision in scale.precisions:
        sizes = name, dtype, precision, scale.prompts, scale.new_tokens
        if (target := find(cells, name, dtype)) is None:
            return
        for method in scale.parity_methods:
            if (built := build(cells, method, target, short)) is None:
                continue

            def row(sizes: Sizes = sizes, built: known.LLM = built) -> dict:
                wrong = _plain(sizes) != _decode(sizes, built)
                return {
                    "sequences": len(wrong),
                    "new_tokens": scale.new_tokens,
                    "first_divergence": [int(row.argmax()) for row in wrong if row.any()],
                }

            cells.run(
                row, model=short, method=method, dtype=dtype, precision=precision,
                prompts=texts.source(),
            )  # fmt: skip
