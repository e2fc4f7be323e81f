"""Files of n-gram tables, which `auto` drafts from before it has learnt.

A file is in safetensors' format. A table of another model costs speed and never a token, but its
numbers mean other tokens, so that a file says for which weights it was made.
"""

import os

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from jspec._validate.errors import InputError
from jspec._validate.whole_files import written_whole
from jspec.drafters.contrib.ngram_table import NGramLines, NGramTable, build, table
from jspec.drafters.contrib.vocabulary_table import tabulate

__all__ = [
    "NGramLines",
    "NGramTable",
    "build",
    "load",
    "read",
    "read_origin",
    "save",
    "table",
    "tabulate",
]

_FORMAT = "jspec n-grams 1"
_AGAIN = "delete it, and make it again with jspec warm or jspec train head --kind ngrams"


def save(path: str | os.PathLike[str], lines: NGramLines, target: str) -> None:
    """Writes a table's lines; a file that is there is replaced at once, or stays.

    Args:
        path: a file in a folder that exists.
        lines: what `build` or `tabulate` gave.
        target: the fingerprint of the weights whose distributions they are,
        `jspec.models.fingerprint`.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import numpy as np, tempfile
        >>> from jspec.drafters.contrib import ngrams
        >>> distributions = np.array([[[1], [2], [0]]]), np.array([[[0.9], [0.8], [0.7]]])
        >>> lines = ngrams.build(np.array([[0, 1, 2]]), distributions, vocab_size=3, k=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ngrams.save(f"{folder}/table", lines, "of these weights")
        ...     table = ngrams.load(f"{folder}/table", "of these weights", vocab_size=3)
        >>> table.tokens[table.line_of_token].tolist()  # after 0 comes 1, after 1 comes 2, ..
        [[1], [2], [0]]
    """
    small = np.uint16 if lines.vocab_size <= 2**16 else np.uint32
    arrays = {
        "tokens": lines.tokens.astype(small),
        "probs": lines.probs.astype(np.float16),
        "singles": lines.singles.astype(small),
        "pairs": lines.pairs,
    }
    metadata = {"format": _FORMAT, "vocab_size": str(lines.vocab_size), "target": target}
    with written_whole(path) as file:
        save_file(arrays, file, metadata)
        file.chmod(0o644)  # it is written so that nobody else may read it


def load(path: str | os.PathLike[str], target: str, vocab_size: int) -> NGramTable:
    """Returns the table of a file that `save` wrote, on the default device; see `read`."""
    return table(read(path, target, vocab_size))


def read(path: str | os.PathLike[str], target: str, vocab_size: int) -> NGramLines:
    """Returns the lines of a file that `save` wrote.

    Args:
        path: the file.
        target: the fingerprint of the weights to draft for.
        vocab_size: V of these.

    Raises:
        InputError: if it is not such a file, or one for other weights.
    """
    if read_origin(path) != (target, vocab_size):
        raise InputError(
            f"{path} is a table of another model's distributions; make one of this model's with "
            "jspec warm or jspec train head --kind ngrams"
        )
    arrays = load_file(path)
    try:
        tokens, probs, singles, pairs = (
            arrays[name] for name in ("tokens", "probs", "singles", "pairs")
        )
    except KeyError as error:
        raise InputError(f"{path} lacks {error}; {_AGAIN}") from error
    shapes = tokens.ndim, probs.ndim, singles.ndim, pairs.ndim
    right = shapes == (2, 2, 1, 1) and tokens.shape == probs.shape and pairs.dtype == np.uint32
    if (
        not right
        or len(tokens) != len(singles) + len(pairs)
        or (max(tokens.max(initial=0), singles.max(initial=0)) >= vocab_size)
    ):
        raise InputError(f"{path} does not hold what it says; {_AGAIN}")
    return NGramLines(
        tokens.astype(np.int32),
        probs.astype(np.float32),
        singles.astype(np.int32),
        pairs,
        vocab_size,
    )


def read_origin(path: str | os.PathLike[str]) -> tuple[str, int]:
    """Returns the (fingerprint, vocabulary) of the weights whose distributions a file has.

    Raises:
        InputError: if it is not a file of n-grams.
    """
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
    except OSError as error:
        raise InputError(f"{path} cannot be read as a table of n-grams: {error}") from error
    except SafetensorError as error:
        raise InputError(
            f"{path} cannot be read as a table of n-grams ({error}); {_AGAIN}"
        ) from error
    if metadata.get("format") != _FORMAT:
        raise InputError(
            f"{path} is not a table of n-grams; make one with jspec warm or jspec train head "
            "--kind ngrams"
        )
    try:
        return metadata["target"], int(metadata["vocab_size"])
    except (KeyError, ValueError) as error:
        raise InputError(f"{path} does not say which model it is for ({error}); {_AGAIN}") from None
