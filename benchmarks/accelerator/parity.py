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

SECTION = "parity"
MODEL = known.BUNDLED
METHODS = ("auto", "token_recycling+suffix", "eagle")
SETTINGS = (("float32", "highest"), ("bfloat16", "default"), ("float32", "default"))
"""Pairs (dtype, `jax_default_matmul_precision`). By default a GPU multiplies float32 as TF32."""


@lru_cache(maxsize=1)
def _plain(dtype: str, precision: str, count: int, new_tokens: int) -> np.ndarray:
    return _decode(dtype, precision, count, new_tokens, "autoregressive")


def _decode(dtype: str, precision: str, count: int, new_tokens: int, method: str) -> np.ndarray:
    """The tokens of all prompts, decoded greedily as one batch."""
    target = loaded(MODEL, dtype)
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
    for dtype, precision in SETTINGS:
        for method in METHODS:
            if method not in known.names():
                cells.skip(f"{method}: the library has no method of that name")
                continue

            def row(dtype: str = dtype, precision: str = precision, method: str = method) -> dict:
                sizes = dtype, precision, scale.prompts, scale.new_tokens
                plain, drafted = _plain(*sizes), _decode(*sizes, method)
                wrong = plain != drafted
                return {
                    "sequences": len(plain),
                    "new_tokens": scale.new_tokens,
                    "first_divergence": [int(row.argmax()) for row in wrong if row.any()],
                }

            cells.run(
                row, model=MODEL, method=method, dtype=dtype, precision=precision,
                prompts=texts.source(),
            )  # fmt: skip
