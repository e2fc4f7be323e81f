"""Prompts: from the shared texts where these are, else the few that stand here."""

from pathlib import Path

import numpy as np
from jaxtyping import Int

from benchmarks import prompts
from benchmarks.harness import SHARED
from jspec.models import Loaded

SHARED_TEXTS, OWN_TEXTS = "shared texts", "own texts"

FILE, SEPARATOR = Path(__file__).with_suffix(".txt"), "\n----\n"


def source() -> str:
    """The name of what prompts are taken from."""
    return SHARED_TEXTS if (SHARED / "data" / "tinystories").is_dir() else OWN_TEXTS


def encoded(target: Loaded, count: int, tokens: int) -> Int[np.ndarray, "B T"]:
    """At most `count` prompts of mixed kinds, cut to one length, so that a program serves all."""
    found = FILE.read_text("utf-8").rstrip().split(SEPARATOR)
    if source() == SHARED_TEXTS:
        each = -(-count // len(prompts.CLASSES))
        of_kinds = [prompts.texts(kind, 4 * each) for kind in prompts.CLASSES]
        found = [text for texts in zip(*of_kinds, strict=False) for text in texts]
    ids = (target.tokenizer.encode(text).ids for text in found)
    return np.array([row[:tokens] for row in ids if len(row) >= tokens][:count])
