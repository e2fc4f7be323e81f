"""The work of `jspec datastore build`: from files of text to a datastore."""

import itertools
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int
from rich.console import Console
from rich.progress import Progress

from jspec._validate.errors import InputError
from jspec.drafters.retrieval import datastore
from jspec.methods import BUNDLED
from jspec.models import open_checkpoint
from jspec.training import corpus

_BATCH = 256
"""Documents that are tokenised at once, on all cores."""


def run(text: Sequence[Path], out: Path, model: str | None, template: str) -> None:
    """Tokenises the documents, sorts the suffixes, and writes the file."""
    began = time.monotonic()
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out {out} is in no folder that exists; make {out.parent} first")
    if out.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise InputError(f"--out {out} cannot be written; name a file in a folder of your own")
    corpus.check_apart(out, text)
    checkpoint = open_checkpoint(model or BUNDLED)
    words = checkpoint.tokenizer()
    vocabulary = words.get_vocab()
    size = max(vocabulary.values()) + 1
    ends, _ = checkpoint.special_tokens(size, words)
    documents = [
        document
        for path in text
        for document in corpus.read(corpus.CorpusSource("", path, template))
    ]
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("tokenising", total=len(documents))
        tokens = stream(words, progress.track(documents, task_id=task), ends[:1])
        progress.add_task(f"sorting {len(tokens):,} suffixes", total=None)
        # On the host, whatever the default device is: it is written to a file and not used.
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            store = datastore.build(tokens, size)
            datastore.save(store, out, vocabulary)
    print(
        f"{len(tokens):,} tokens of {len(documents):,} documents in {out}, "
        f"{out.stat().st_size / 1e6:.1f} MB, after {time.monotonic() - began:.1f} s"
    )


def stream(words: Any, documents: Iterable[str], ends: Sequence[int]) -> Int[np.ndarray, " C"]:
    """Returns the tokens of all documents, `ends` after each."""
    parts = [np.zeros(0, np.int32)]
    for batch in _batches(documents):
        for encoded in words.encode_batch(batch, add_special_tokens=False):
            parts.append(np.array([*encoded.ids, *ends], np.int32))
    return np.concatenate(parts)


def _batches(documents: Iterable[str]) -> Iterable[list[str]]:
    documents = iter(documents)
    while batch := list(itertools.islice(documents, _BATCH)):
        yield batch
