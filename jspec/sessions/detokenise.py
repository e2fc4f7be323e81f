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
    """Decodes one growing row, in time linear in its length.

    What a token adds depends on those before it: a character may span several tokens, and some
    decoders treat the first one apart. So tokens are decoded behind those of the piece before
    theirs, as vLLM does it. Text that later tokens could still change is held back; the
    `DecodeStream` of `tokenizers` raises an error for some of that, such as bytes of no character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]):
        self._tokenizer = tokenizer
        self._ids = list(prompt)
        """The tokens of the last piece, and those behind it."""
        self._piece = 0
        """The place where the tokens of the last piece end."""
        self._text = ""
        """The text of `_ids` that is said already."""
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
        # Tokens that are not written, as end tokens are, do not end it; a byte may be a space, of
        # which a decoder writes nothing where it is the first.
        for token in reversed(self._ids):
            if _BYTE.fullmatch(self._tokenizer.id_to_token(token) or ""):
                return ""
            if self._tokenizer.decode([token]):
                break
        # U+FFFD at the end is a character whose other bytes may follow.
        text = self._tokenizer.decode(self._ids)
        piece = self._grow(text.rstrip(_BROKEN))
        if piece and self._text == text:
            self._begin_after_the_last_piece()
        return piece

    def _begin_after_the_last_piece(self) -> None:
        rest = self._ids[self._piece :]
        text = self._tokenizer.decode(rest)
        if text:  # with none before them, tokens would be decoded as the first
            self._ids, self._text, self._piece = rest, text, len(rest)

    def _grow(self, text: str) -> str:
        if not text.startswith(self._text):
            return ""
        piece = text[len(self._text) :]
        self._text = text
        return piece
