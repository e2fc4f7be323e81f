"""A corpus of tokens and its suffix array, in which `jspec.REST` looks continuations up.

A file holds a header, the tokens and the suffix array, in this order and little-endian. The header
ends with a digest of the rest of the file.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, UInt

from jspec._validate import extras
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.whole_files import written_whole

LARGEST = 2**31 - 2**16
"""The most tokens of a corpus: a place in it plus a continuation's length must be an int32."""

VERSION = 1
"""The version of the file's format."""
_MAGIC = b"jspecSA\0"
# Magic, version, bytes per token, vocabulary, tokens, fingerprint of the tokenizer; then the digest
# of that and of the arrays. Arrays begin at multiples of 64 bytes, so that a CPU uses them where
# the file is mapped.
_FIELDS = struct.Struct("<8sIIQQ32s")
_DIGEST = 32
_ALIGNMENT = 64


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
    return Datastore(jnp.asarray(corpus), jnp.asarray(_sorted_suffixes(corpus)), vocab_size)


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
    corpus = np.asarray(store.corpus)
    suffixes = np.asarray(store.suffixes, "<i4")
    corpus = corpus.astype(corpus.dtype.newbyteorder("<"), copy=False)
    fields = _FIELDS.pack(
        _MAGIC, VERSION, corpus.itemsize, store.vocab_size, corpus.size, fingerprint(vocabulary)
    )
    first, second, _ = _layout(corpus.itemsize, corpus.size)
    between = bytes(second - first - corpus.nbytes)
    digest = _digest([fields, corpus.data, between, suffixes.data])
    head = (fields + digest).ljust(first, b"\0")
    with written_whole(path) as temporary, temporary.open("wb") as file:
        for part in (head, corpus.data, between, suffixes.data):
            file.write(part)


def load(path: str | os.PathLike, vocabulary: Mapping[str, int]) -> Datastore:
    """Maps a file that `save` wrote, and puts it on the default device (a CPU uses it in place).

    `save` has an example.

    Args:
        path: of the file.
        vocabulary: the tokenizer's ids by token, `tokenizer.get_vocab()`.

    Returns:
        The datastore, the params of `jspec.REST`.

    Raises:
        InputError: if it is not a datastore, of another version or tokenizer, or not whole.
    """
    path, again = Path(path), "build it again with `jspec datastore build`"
    if not path.is_file():
        raise InputError(f"{path} is not a file; make a datastore with `jspec datastore build`")
    length = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_FIELDS.size + _DIGEST)
    if len(head) < _FIELDS.size + _DIGEST or not head.startswith(_MAGIC):
        raise InputError(f"{path} is not a datastore; make one with `jspec datastore build`")
    _, version, width, vocab_size, size, tokenizer = _FIELDS.unpack_from(head)
    if version != VERSION:
        raise InputError(f"{path} has format {version} and this jspec reads {VERSION}; {again}")
    if tokenizer != fingerprint(vocabulary):
        raise InputError(
            f"{path} was built with another tokenizer than the target's; {again} and the target's "
            "--model"
        )
    first, second, total = _layout(width, size)
    if length != total:
        raise InputError(f"{path} has {length} bytes and its header says {total}; {again}")
    mapped = np.memmap(path, np.uint8, mode="r")
    if _digest([head[: _FIELDS.size], mapped[first:].data]) != head[_FIELDS.size :]:
        raise InputError(f"{path} is damaged: its checksum is wrong; {again}")
    corpus = mapped[first : first + size * width].view(f"<u{width}")
    suffixes = mapped[second:].view("<i4")
    corpus, suffixes = jax.device_put((corpus, suffixes), may_alias=True)
    return Datastore(corpus, suffixes, vocab_size)


def fingerprint(vocabulary: Mapping[str, int]) -> bytes:
    """Computes 32 bytes that two tokenizers share if every id means the same to both.

    Args:
        vocabulary: ids by token.
    """
    ordered = sorted((number, token) for token, number in vocabulary.items())
    return _digest(
        f"{number} {token}\0".encode(errors="surrogatepass") for number, token in ordered
    )


def _sorted_suffixes(corpus: UInt[np.ndarray, " corpus"]) -> Int[np.ndarray, " corpus"]:
    extras.require("building a datastore", "datastore", "pydivsufsort")
    from pydivsufsort import divsufsort

    return divsufsort(corpus).astype(np.int32, copy=False)


def _token_type(vocab_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def _layout(width: int, size: int) -> tuple[int, int, int]:
    """Returns the bytes at which tokens begin, suffixes begin and the file ends."""
    first = _align(_FIELDS.size + _DIGEST)
    second = _align(first + size * width)
    return first, second, second + size * 4


def _align(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT


def _digest(parts: Iterable[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()
