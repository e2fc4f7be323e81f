"""Rollouts on disk, from the process that wrote them to the one that drafts from them.

A file in safetensors' format: the arrays of `jspec.Rollouts`, and in its metadata a fingerprint of
the tokenizer and a digest of the arrays.
"""

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jspec._validate.errors import InputError
from jspec._validate.whole_files import written_whole
from jspec.drafters.retrieval.datastore import fingerprint
from jspec.drafters.retrieval.suffix import Rollouts

__all__ = ["load", "save"]

_FORMAT = "jspec rollouts 1"
_AGAIN = "write it again with jspec.drafters.retrieval.rollout_file.save"


def save(path: str | os.PathLike[str], rollouts: Rollouts, vocabulary: Mapping[str, int]) -> None:
    """Writes what each row wrote; if interrupted, an older file stays whole.

    Args:
        path: of the file; its folder is made.
        rollouts: of B >= 1 rows, such as `jspec.Rollouts(result.tokens, result.lengths)`.
        vocabulary: the tokenizer's ids by token, `tokenizer.get_vocab()`. `load` compares them.

    Raises:
        InputError: if there are no tokens, or some are outside the vocabulary.
        OSError: if the file cannot be written.

    Example:
        >>> import jspec, numpy as np, tempfile
        >>> from jspec.drafters.retrieval import rollout_file
        >>> vocabulary = {"a": 0, "b": 1, "c": 2}
        >>> last = jspec.Rollouts(np.array([[2, 0], [1, 0]]), np.array([2, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rollout_file.save(f"{folder}/last", last, vocabulary)
        ...     rollout_file.load(f"{folder}/last", vocabulary).tokens.tolist()
        [[2, 0], [1, 0]]
    """
    arrays = {"tokens": np.asarray(rollouts.tokens), "lengths": np.asarray(rollouts.lengths)}
    if fault := _fault(arrays, vocabulary):
        raise InputError(f"the rollouts have {fault}")
    inside = np.arange(arrays["tokens"].shape[1]) < arrays["lengths"][:, None]
    arrays["tokens"] = np.where(inside, arrays["tokens"], 0)
    arrays = {name: array.astype(np.int32) for name, array in arrays.items()}
    metadata = {
        "format": _FORMAT,
        "tokenizer": fingerprint(vocabulary).hex(),
        "digest": _digest(arrays),
    }
    with written_whole(path) as file:
        save_file(arrays, file, metadata)


def load(path: str | os.PathLike[str], vocabulary: Mapping[str, int]) -> Rollouts:
    """Returns the rollouts that `save` wrote: params of `jspec.Suffix`.

    Args:
        path: of the file.
        vocabulary: the target's ids by token, `tokenizer.get_vocab()`.

    Raises:
        InputError: if it is not a file of rollouts, or damaged, empty, or of another tokenizer.
    """
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as rollouts: {error}; {_AGAIN}") from error
    if metadata.get("format") != _FORMAT:
        raise InputError(f"{path} is not a file of rollouts; {_AGAIN}")
    if metadata.get("tokenizer") != fingerprint(vocabulary).hex():
        raise InputError(
            f"{path} holds tokens of another tokenizer than the target's; pass the rollouts of a "
            "model with the target's tokenizer"
        )
    if set(arrays) != {"tokens", "lengths"} or metadata.get("digest") != _digest(arrays):
        raise InputError(f"{path} is damaged: its digest does not match its arrays; {_AGAIN}")
    if fault := _fault(arrays, vocabulary):
        raise InputError(f"{path} has {fault}")
    return Rollouts(jnp.asarray(arrays["tokens"]), jnp.asarray(arrays["lengths"]))


def _fault(arrays: Mapping[str, np.ndarray], vocabulary: Mapping[str, int]) -> str:
    """Returns what is wrong with the arrays, and the fix; empty if nothing is."""
    tokens, lengths = arrays["tokens"], arrays["lengths"]
    integers = all(np.issubdtype(array.dtype, np.integer) for array in arrays.values())
    if tokens.ndim != 2 or lengths.shape != tokens.shape[:1] or not integers:
        return (
            f"tokens {list(tokens.shape)} of {tokens.dtype} and lengths {list(lengths.shape)} of "
            f"{lengths.dtype}; pass integers [B, T] and [B]"
        )
    wrong = lengths[(lengths < 0) | (lengths > tokens.shape[1])]
    if wrong.size:
        return f"a length of {wrong[0]}; pass lengths in 0 .. {tokens.shape[1]}"
    if not lengths.any():
        return "no tokens; pass rows that have some"
    max_id = max(vocabulary.values(), default=-1)
    ids = tokens[np.arange(tokens.shape[1]) < lengths[:, None]]
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high > max_id:
        return (
            f"tokens {low} .. {high}, outside the vocabulary of ids 0 .. {max_id}; pass the "
            "vocabulary of the tokenizer that made them"
        )
    return ""


def _digest(arrays: Mapping[str, Any]) -> str:
    """Returns the same for the same names, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
