"""The n-gram tables of this installation and of the user's cache, found by a target's weights."""

import os
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from jspec._validate.cache_folders import locate
from jspec.drafters.contrib import ngrams
from jspec.drafters.contrib.ngram_table import NGramTable
from jspec.models import hub
from jspec.models.fingerprint import fingerprint
from jspec.models.load import Loaded

SUFFIX = ".safetensors"
FILE = f"ngrams{SUFFIX}"
"""The name of a bundled table, in the folder of its model."""
CACHE = "ngrams"
"""The folder of the user's cache, whose tables are named by the fingerprints of their weights."""


def bundled() -> Mapping[str, Path]:
    """Returns the files that came with this installation, by the names of their models."""
    return {file.parent.name: file for file in sorted(hub.ZOO.glob(f"*/{FILE}"))}


def find(target: Loaded) -> str | None:
    """Returns the table of these weights: the bundled one, the one in the cache, or None."""
    leaves = jax.tree.leaves(target.params)
    if not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
        return None
    place = locate(os.environ, CACHE)
    tables = {} if place is None else {file.stem: file for file in place.glob(f"*{SUFFIX}")}
    for file in bundled().values():
        weights, vocab_size = ngrams.read_origin(file)
        if vocab_size == target.model.vocab_size:
            tables[weights] = file
    # Weights are read only where some table may be theirs.
    file = tables.get(fingerprint(target.params, target.model)) if tables else None
    return None if file is None else str(file)


def load(name: str | os.PathLike[str], target: Loaded) -> NGramTable:
    """Returns the table of a file, or of a bundled model's name."""
    path = bundled().get(str(name)) if not Path(name).exists() else None
    ours = fingerprint(target.params, target.model)
    return ngrams.load(path or name, ours, target.model.vocab_size)
