"""Labels of single tokens: their text within a text, not at its beginning."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

_ANCHOR = "a"
"""A text that tokens are shown after: decoders treat the first token of a text apart."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer(Protocol):
    """The part of a `tokenizers.Tokenizer` that is used here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def encode(self, sequence: str) -> Any: ...

    def id_to_token(self, id: int) -> str | None: ...


def strings(tokenizer: Tokenizer, tokens: Iterable[int]) -> dict[int, str | dict[str, str]]:
    """Returns the text of each token. One that has none by itself is {"bytes": in hexadecimal}
    if it is a part of a character, and else {"sign": its name}, such as an end token.
    """
    anchor = tokenizer.encode(_ANCHOR).ids[-1:]
    before = tokenizer.decode(anchor)
    found: dict[int, str | dict[str, str]] = {}
    for token in tokens:
        text = tokenizer.decode([*anchor, token])
        text = text[len(before) :] if text.startswith(before) else ""
        plain = text and _BROKEN not in text
        found[token] = text if plain else _named(tokenizer.id_to_token(token), token)
    return found


def _named(entry: str | None, token: int) -> dict[str, str]:
    if entry is None:
        return {"sign": f"#{token}"}
    if byte := _BYTE.fullmatch(entry):
        return {"bytes": byte[1].upper()}
    if all(character in _BYTES for character in entry) and not entry.isascii():
        return {"bytes": " ".join(f"{_BYTES[character]:02X}" for character in entry)}
    return {"sign": entry}


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte of each character of a byte-level vocabulary (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()
