"""A corpus of tokens and its suffix array, in which `jspec.REST` looks continuations up.

A file is in safetensors' format, with the vocabulary's size and a digest of it.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, UInt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jspec._validate import extras
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.whole_files import written_whole

LARGEST = 2**31 - 2**16
"""The most tokens of a corpus: a place in it plus a continuation's length must be an int32."""
_FORMAT = "jspec datastore 2"


@flax.struct.dataclass
class Datastore:
    """A corpus and its suffix array: the params of `jspec.REST`.

    Make one with `build`, or `load` one from a file.
    """

    corpus: UInt[Array, " corpus"]
    """Token ids, of 16 bits where the vocabulary allows, else of 32."""
    suffixes: Int[Array, " corpus"]
    """The places of the corpus, int32, in the lexicographic order of what begins there."""
    vocab_size: int = flax.struct.field(pytree_node=False)


def build(tokens: ArrayLike, vocab_size: int) -> Datastore:
    """Builds the suffix array of a corpus.

    Args:
        tokens: token ids, documents one behind the other with an end token between them.
        vocab_size: V of the tokenizer.

    Returns:
        The datastore, the params of `jspec.REST`.

    Raises:
        InputError: if there are no tokens, too many, or some outside the vocabulary; or if the
            library that sorts (the extra `datastore`) is not installed.

    Example:
        >>> from jspec import datastore
        >>> store = datastore.build([2, 0, 1, 0], vocab_size=3)
        >>> store.suffixes.tolist()
        [3, 1, 2, 0]
    """
    check_integer("vocab_size", vocab_size, 1, 2**31)
    corpus = np.asarray(tokens)
    if corpus.size == 0:
        corpus = corpus.astype(np.int32)
    if corpus.ndim != 1 or not np.issubdtype(corpus.dtype, np.integer):
        raise InputError(
            f"tokens has shape {corpus.shape} and dtype {corpus.dtype}; pass a list of token ids"
        )
    if not 1 <= corpus.size <= LARGEST:
        raise InputError(
            f"the corpus has {corpus.size} tokens; a datastore holds 1 .. {LARGEST}, so give it "
            f"{'some text' if corpus.size == 0 else 'less text'}"
        )
    low, high = int(corpus.min()), int(corpus.max())
    if not 0 <= low <= high < vocab_size:
        raise InputError(
            f"the corpus has tokens {low} .. {high}, outside the vocabulary of {vocab_size}; "
            "pass the vocabulary of the tokenizer that made them"
        )
    corpus = corpus.astype(_token_type(vocab_size))
    return Datastore(jnp.asarray(corpus), jnp.asarray(_sort_suffixes(corpus)), vocab_size)


def save(store: Datastore, path: str | os.PathLike, vocabulary: Mapping[str, int]) -> None:
    """Writes a datastore to a file; if interrupted, an older file stays whole.

    Args:
        store: what `build` gave.
        path: of the file.
        vocabulary: the tokenizer's ids by token, `tokenizer.get_vocab()`. `load` compares them.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import tempfile
        >>> from jspec import datastore
        >>> vocabulary = {"a": 0, "b": 1, "c": 2}
        >>> store = datastore.build([2, 0, 1, 0], vocab_size=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datastore.save(store, f"{folder}/store.bin", vocabulary)
        ...     datastore.load(f"{folder}/store.bin", vocabulary).corpus.tolist()
        [2, 0, 1, 0]
    """
    arrays = {"corpus": np.asarray(store.corpus), "suffixes": np.asarray(store.suffixes)}
    metadata = {"format": _FORMAT, "tokenizer": fingerprint(vocabulary)}
    with written_whole(path) as file:
        save_file(arrays, file, metadata | {"vocab_size": str(store.vocab_size)})


def load(path: str | os.PathLike, vocabulary: Mapping[str, int]) -> Datastore:
    """Reads a file that `save` wrote; `save` has an example.

    Args:
        path: of the file.
        vocabulary: the tokenizer's ids by token, `tokenizer.get_vocab()`.

    Returns:
        The datastore, the params of `jspec.REST`.

    Raises:
        InputError: if it is not a datastore, of another tokenizer, or not whole.
    """
    again = "build it again with `jspec datastore build`"
    if not Path(path).is_file():
        raise InputError(f"{path} is not a file; make a datastore with `jspec datastore build`")
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            arrays = [file.get_tensor(name) for name in ("corpus", "suffixes")]
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is not a datastore of this version ({error}); {again}") from error
    if metadata.get("format") != _FORMAT:
        raise InputError(f"{path} is not a datastore of this version; {again}")
    if metadata.get("tokenizer") != fingerprint(vocabulary):
        raise InputError(
            f"{path} was built with another tokenizer than the target's; {again} and the target's "
            "--model"
        )
    size, corpus, suffixes = metadata.get("vocab_size", ""), *arrays
    if not (
        size.isascii() and size.isdigit() and 0 < int(size) <= 2**31 and corpus.size
        and corpus.shape == suffixes.shape == (corpus.size,)
        and (corpus.dtype, suffixes.dtype) == (_token_type(int(size)), np.int32)
    ):  # fmt: skip
        raise InputError(
            f"{path} is damaged: it has no corpus with a place for each token; {again}"
        )
    return Datastore(jnp.asarray(corpus), jnp.asarray(suffixes), int(size))


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """Returns 64 digits that two tokenizers share if every id means the same to both.

    Args:
        vocabulary: ids by token.
    """
    ordered = sorted((number, token) for token, number in vocabulary.items())
    text = "".join(f"{number} {token}\0" for number, token in ordered)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _sort_suffixes(corpus: UInt[np.ndarray, " corpus"]) -> Int[np.ndarray, " corpus"]:
    extras.require("building a datastore", "datastore", "pydivsufsort")
    from pydivsufsort import divsufsort

    return divsufsort(corpus).astype(np.int32, copy=False)


def _token_type(vocab_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
