"""Text as it comes, piece by piece; the pieces join to the whole text decoded at once."""

import re
from collections.abc import Sequence
from typing import Protocol

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """The part of a `tokenizers.Tokenizer` that is used here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def id_to_token(self, id: int) -> str | None: ...


class Detokeniser:
    """Decodes one growing row.

    Every piece comes from a decode of all tokens, because what a token adds depends on those
    before it: a character may span several tokens, and some decoders treat the first one apart.
    Text that later tokens could still change is held back.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]):
        self._tokenizer = tokenizer
        self._ids = list(prompt)
        self._text = ""
        self.prompt = self._settle()
        """The prompt's text, up to a character that its last tokens leave unfinished."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that is certain after more tokens; often nothing within a character."""
        self._ids.extend(tokens)
        return self._settle()

    def finish(self, tokens: Sequence[int] = ()) -> str:
        """The text that is left after the last tokens."""
        self._ids.extend(tokens)
        return self._grow(self._tokenizer.decode(self._ids))

    def _settle(self) -> str:
        # A run of byte tokens is decoded as one, and as nothing but U+FFFD if it is not valid
        # to its end: until the run is over, all of it may change.
        # Tokens that are not written, as end tokens are, do not end it.
        written = (token for token in reversed(self._ids) if self._tokenizer.decode([token]))
        last = next(written, None)
        if last is not None and _BYTE.fullmatch(self._tokenizer.id_to_token(last) or ""):
            return ""
        # U+FFFD at the end is a character whose other bytes may follow.
        return self._grow(self._tokenizer.decode(self._ids).rstrip(_BROKEN))

    def _grow(self, text: str) -> str:
        if not text.startswith(self._text):
            return ""
        piece = text[len(self._text) :]
        self._text = text
        return piece
