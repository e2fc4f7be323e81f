"""The n-gram tables that came with this installation, and the one of a target's weights."""

import os
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from jspec.drafters.contrib import ngrams
from jspec.drafters.contrib.ngram_table import NGramTable
from jspec.models import hub
from jspec.models.fingerprint import fingerprint
from jspec.models.load import Loaded

FILE = "ngrams.safetensors"
"""The name of a bundled table, in the folder of its model."""


def bundled() -> Mapping[str, Path]:
    """Returns the files that came with this installation, by the names of their models."""
    return {file.parent.name: file for file in sorted(hub.ZOO.glob(f"*/{FILE}"))}


def find(target: Loaded) -> str | None:
    """Returns the bundled table of these weights, or None."""
    leaves = jax.tree.leaves(target.params)
    if not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
        return None
    tables = {str(file): ngrams.made_for(file) for file in bundled().values()}
    size = target.model.vocab_size
    fitting = {
        file: weights for file, (weights, vocab_size) in tables.items() if vocab_size == size
    }
    # Weights are read only where some table may be theirs.
    ours = fingerprint(target.params, target.model) if fitting else None
    return next((file for file, weights in fitting.items() if weights == ours), None)


def load(name: str | os.PathLike[str], target: Loaded) -> NGramTable:
    """Returns the table of a file, or of a bundled model's name."""
    path = bundled().get(str(name)) if not Path(name).exists() else None
    ours = fingerprint(target.params, target.model)
    return ngrams.load(path or name, ours, target.model.vocab_size)
