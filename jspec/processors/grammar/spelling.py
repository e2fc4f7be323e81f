"""The bytes that each token of a vocabulary stands for."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jspec._validate.errors import InputError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_MOST = 1000
"""Tokens among which a word is looked for."""


class TokenBytes(list[bytes | None]):
    """The bytes of each token in a text; None for special tokens, which have names alone."""

    def __init__(self, spelled: Iterable[bytes | None] = (), names: Mapping[int, bytes] = {}):
        super().__init__(spelled)
        self.names = dict(names)


class Vocabulary:
    """The spelling of a tokenizer's tokens: texts, grammars and stop strings are all made of it."""

    def __init__(self, tokenizer: Any):
        inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
        added = getattr(inner, "get_added_tokens_decoder", dict)()
        words = {token: entry.content.encode() for token, entry in added.items()}
        self.names = {token: words[token] for token, entry in added.items() if entry.special}
        """The texts of special tokens."""
        self.drops_space = False
        """True if a text has lost the space that it begins with."""
        self._name: Callable[[int], str | None] = inner.id_to_token
        self.token_to_id = getattr(inner, "token_to_id", lambda _: None)
        parts = [*_parts(inner)]
        kinds = {part["type"] for part in parts}
        if "ByteLevel" in kinds:
            self._read = lambda token, name: words.get(token) or _from_letters(name)
        elif any(_SPACE in str(part) for part in parts):
            fallback = "ByteFallback" in kinds
            self._read = lambda token, name: _from_pieces(name, fallback)
            self.drops_space = any(
                part["type"] in ("Prepend", "Strip")
                or part.get("prepend_scheme", "never") != "never"
                for part in parts
            )
        elif "BPEDecoder" in kinds:
            end = next(part["suffix"] for part in parts if part["type"] == "BPEDecoder")
            self._read = lambda token, name: name.replace(end, " ").encode()
        else:
            decode = inner.decode
            texts = ((token, decode([token])) for token in range(_MOST))
            alike = (
                pair for pair in texts if pair[1] and decode([pair[0]] * 2).startswith(pair[1])
            )
            word, text = next(alike, (0, ""))
            self._read = lambda token, name: decode([word, token]).removeprefix(text).encode()
            self.drops_space = decode([word, word]) != text + text

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token; None if it is special, or there is none."""
        name = None if token in self.names else self._name(token)
        return None if name is None else self._read(token, name)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens within a text."""
        return b"".join(self.bytes_of(token) or b"" for token in tokens).decode(errors="replace")


def token_bytes(tokenizer: Any) -> TokenBytes:
    """Returns the bytes of each token of a tokenizer, in a text; None for special tokens.

    The bytes of the tokens of a text are those of the text. `jspec.Detokeniser` writes them.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, a tokenizer of `transformers` that has one, or the
            bytes themselves, one entry a token.

    Raises:
        InputError: if it is not one of them.

    Example:
        >>> token_bytes([b"a", b"bc", None])
        [b'a', b'bc', None]
    """
    if isinstance(tokenizer, Sequence) and not isinstance(tokenizer, str | bytes):
        if wrong := [entry for entry in tokenizer if not isinstance(entry, bytes | None)]:
            raise InputError(
                f"the vocabulary has {wrong[0]!r:.40}; pass the bytes of each token, None where it "
                "has no text"
            )
        return TokenBytes(tokenizer, getattr(tokenizer, "names", {}))
    inner: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(inner, "to_str"):
        raise InputError(
            f"tokenizer is {tokenizer!r:.80}; pass a tokenizers.Tokenizer, or the bytes of each "
            "token"
        )
    vocabulary = Vocabulary(inner)
    size = max(inner.get_vocab().values(), default=-1) + 1  # numbers may be left out
    return TokenBytes(map(vocabulary.bytes_of, range(size)), vocabulary.names)


def _parts(tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yields what a tokenizer splits texts with and joins them with."""
    for name in ("pre_tokenizer", "normalizer", "decoder"):
        if (component := getattr(tokenizer, name, None)) is not None:
            settings = json.loads(component.__getstate__())
            lists = (settings.get(key) for key in ("pretokenizers", "normalizers", "decoders"))
            yield from next(filter(None, lists), [settings])


def _from_letters(name: str) -> bytes:
    try:
        return bytes(_LETTERS[letter] for letter in name)
    except KeyError:  # a name with a letter that stands for no byte is the text, to decoders too
        return name.encode()


def _from_pieces(name: str, fallback: bool) -> bytes:
    byte = _BYTE.fullmatch(name) if fallback else None
    return bytes([int(byte[1], 16)]) if byte else name.replace(_SPACE, " ").encode()


def _byte_letters() -> dict[str, int]:
    """Returns the letters by which GPT-2's vocabulary writes bytes (Radford et al. 2019):
    printable ones stand for themselves, the others for those after 255, in their order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(rest)}


_LETTERS = _byte_letters()
