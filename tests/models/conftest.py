"""The recorded models, each loaded and its forward pass traced once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import jspec.models
from jspec.types import Output

FIXTURES = Path(__file__).parent / "fixtures"
QUICK = ("deepseek_v3", "gemma3", "gpt2", "llama31", "mixtral", "qwen3_next")
"""One family of each kind of attention or memory; the slow tests have all others."""


class Recorded(NamedTuple):
    """A variant and what `transformers` says of it."""

    model: Any
    params: dict
    forward: Callable[..., Output]
    tokens: np.ndarray
    """[B, N]"""
    logits: np.ndarray
    """[B, N, V]"""


@cache
def load(name: str) -> Recorded:
    loaded = jspec.models.load(FIXTURES / name, with_tokenizer=False)
    reference = load_file(FIXTURES / name / "reference.safetensors")
    tokens = reference["tokens"].astype(np.int32)
    return Recorded(
        loaded.model, loaded.params, jax.jit(loaded.model.apply), tokens, reference["logits"]
    )


@pytest.fixture(
    params=[
        folder.name if folder.name in QUICK else pytest.param(folder.name, marks=pytest.mark.slow)
        for folder in sorted(FIXTURES.iterdir())
    ]
)
def variant(request: pytest.FixtureRequest) -> Recorded:
    return load(request.param)


@pytest.fixture
def recorded() -> Callable[[str], Recorded]:
    """A recorded model by its name."""
    return load


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture(autouse=True)
def highest():
    """Comparisons within 1e-4 need float32 products, which are not the default on every device."""
    with jax.default_matmul_precision("highest"):
        yield
