"""Are the drafted tokens those of plain decoding, in float32, in TF32 and in bfloat16?"""

from functools import lru_cache

import jax
import numpy as np

import jspec
from benchmarks.accelerator import texts
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.methods import PROMPT_TOKENS, loaded
from benchmarks.accelerator.shapes import Scale
from jspec import methods as known
from jspec.errors import InputError

SECTION = "parity"
METHODS = ("auto", "token_recycling+suffix", "eagle")
SETTINGS = (("float32", "highest"), ("bfloat16", "default"), ("float32", "default"))
"""Pairs (dtype, `jax_default_matmul_precision`). By default a GPU multiplies float32 as TF32."""


Sizes = tuple[str, str, str, int, int]
"""Model, dtype, precision, number of prompts, new tokens."""


@lru_cache(maxsize=1)
def _plain(sizes: Sizes) -> np.ndarray:
    return _decode(sizes, "autoregressive")


def _decode(sizes: Sizes, method: str) -> np.ndarray:
    """The tokens of all prompts, decoded greedily as one batch."""
    name, dtype, precision, count, new_tokens = sizes
    target = loaded(name, dtype)
    built = known.build(method, target)
    prompts = texts.encoded(target, count, PROMPT_TOKENS)
    with jax.default_matmul_precision(precision):
        result = jspec.decode(
            built.model, target.params, prompts, drafter=built.drafter,
            drafter_params=built.drafter_params, max_new_tokens=new_tokens,
        )  # fmt: skip
    return np.asarray(result.tokens)


def measure(cells: Cells, scale: Scale) -> None:
    """One row for each setting and method: the sequences that differ, and where they begin to."""
    name = scale.models[0]
    for dtype, precision in SETTINGS:
        sizes = name, dtype, precision, scale.prompts, scale.new_tokens
        for method in METHODS:
            try:
                known.build(method, loaded(name, dtype))
            except InputError as reason:
                cells.skip(f"{method} on {name}: {reason}")
                continue

            def row(sizes: Sizes = sizes, method: str = method) -> dict:
                wrong = _plain(sizes) != _decode(sizes, method)
                return {
                    "sequences": len(wrong),
                    "new_tokens": scale.new_tokens,
                    "first_divergence": [int(row.argmax()) for row in wrong if row.any()],
                }

            cells.run(
                row, model=name, method=method, dtype=dtype, precision=precision,
                prompts=texts.source(),
            )  # fmt: skip
