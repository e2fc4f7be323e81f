"""Text as it comes, piece by piece; the pieces join to the whole text decoded at once."""

import codecs
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from jspec.models import reasoning

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """The part of a `tokenizers.Tokenizer` that is used here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def id_to_token(self, id: int) -> str | None: ...


class Detokeniser:
    """Decodes what a row adds to its prompt as it comes, in time linear in its length.

    What a token adds depends on those before it: a character may span several tokens, and some
    decoders treat the first one apart. So tokens are decoded after the previous piece's tokens, as
    vLLM does it. Text that later tokens could still change is held back; the `DecodeStream` of
    `tokenizers` raises an error for some of that, such as bytes that form no character.

    The prompt's text and all pieces join to the text of all tokens. A character that the prompt
    leaves unfinished is of the first piece if that ends it.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, or what has its `decode` and `id_to_token`.
        prompt: the tokens before those that are pushed.

    Example:
        >>> from jspec import models
        >>> tokenizer = models.load("jspec-800k").tokenizer
        >>> prompt, ids = tokenizer.encode("She had").ids, tokenizer.encode(" a naïve cat").ids[1:]
        >>> row = Detokeniser(tokenizer, prompt)
        >>> "".join([*(row.push([token]) for token in ids), row.finish()])
        ' a naïve cat'
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()):
        self._tokenizer = tokenizer = reasoning.readable(tokenizer)
        self._prompt = prompt
        self._ids = self._tail()
        """The tokens of the last piece, and those behind it; at first the prompt's last ones."""
        finished, unfinished = self._finished(self._ids)
        self._piece = len(self._ids) - len(unfinished)
        """The place where the tokens of the last piece end."""
        self._said = [tokenizer.decode(self._ids), finished]
        """The emitted text of `_ids`, at first the prompt's."""
        self._begun = False
        """True if there was a piece."""

    @property
    def prompt(self) -> str:
        """The prompt's text, up to a character that its last tokens leave unfinished."""
        return self._finished(self._prompt)[0]

    def push(self, tokens: Sequence[int]) -> str:
        """Returns the text that is certain after more tokens; often nothing within a character."""
        self._ids.extend(tokens)
        # A run of byte tokens is decoded as one, and as nothing but U+FFFD if it is not valid
        # to its end: until the run is over, all of it may change.
        if next(self._run(self._ids), None) is not None:
            return ""
        # U+FFFD at the end is a character whose other bytes may follow.
        text, said = self._decoded()
        certain = text.rstrip(_BROKEN)
        piece = certain[len(said) :]
        if piece:
            self._said, self._begun = [certain], True
            if certain == text:
                self._begin_after_the_last_piece()
        return piece

    def finish(
        self,
        tokens: Sequence[int] = (),
        stop_bytes: int = 0,
        status: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> str:
        """Returns the text that is left after the last tokens; the token of an end has none.

        Args:
            tokens: the last ones.
            stop_bytes: the bytes at its end that are of a stop string, as in `Result`.
            status: why the row ended, as in `Result`.
            stop_token_ids: the tokens that ended it if it is `Status.STOP`, as in `Stopping`.
        """
        self._ids.extend(without_end_token(tokens, status, stop_token_ids))
        text, said = self._decoded()
        self._said, self._begun = [text], True
        return without_end(text[len(said) :], stop_bytes)

    def _begin_after_the_last_piece(self) -> None:
        rest = self._ids[self._piece :]
        text = self._tokenizer.decode(rest)
        if text:  # with none before them, tokens would be decoded as the first
            self._ids, self._said, self._piece = rest, [text], len(rest)

    def _decoded(self) -> tuple[str, str]:
        """Returns the text of `_ids`, and what of it is said."""
        text = self._tokenizer.decode(self._ids)
        for said in self._said:
            if text.startswith(said):
                return text, said
        if self._begun:
            return text, text
        # Bytes that are not text have made such of the prompt's bytes too, which change no more.
        self._ids, self._said, self._piece = self._ids[self._piece :], [""], 0
        return self._tokenizer.decode(self._ids), ""

    def _tail(self) -> list[int]:
        """Returns the prompt's last tokens, from one on whose text is whole by itself: with
        those before it they would be decoded alike.
        """
        for place in reversed(range(len(self._prompt))):
            text = self._text_of(token := self._prompt[place])
            if text and _BROKEN not in text and self._byte(token) is None:
                return list(self._prompt[place:])
        return list(self._prompt)

    def _finished(self, ids: Sequence[int]) -> tuple[str, Sequence[int]]:
        """Returns the text of tokens without a character that is not whole, and its tokens."""
        run = [*self._run(ids)][::-1]
        if not run:
            return self._tokenizer.decode(ids).rstrip(_BROKEN), ()
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            decoder.decode(bytes(self._byte(ids[place]) or 0 for place in run))
        except UnicodeDecodeError:  # no byte that follows makes text of it
            return self._tokenizer.decode(ids), ()
        size = len(decoder.getstate()[0])
        begin = run[-size] if size else len(ids)
        return self._tokenizer.decode(ids[:begin]), ids[begin:]

    def _run(self, ids: Sequence[int]) -> Iterator[int]:
        """Yields the places of the byte tokens at the end, the last first. Tokens that are not
        written, as end tokens are, do not end a run.
        """
        for place in reversed(range(len(ids))):
            if self._byte(ids[place]) is not None:
                yield place
            elif self._text_of(ids[place]):
                return

    def _byte(self, token: int) -> int | None:
        found = _BYTE.fullmatch(self._tokenizer.id_to_token(token) or "")
        return int(found[1], 16) if found else None

    def _text_of(self, token: int) -> str:
        """Returns the text of a token twice: of a first space decoders write nothing."""
        return self._tokenizer.decode([token, token])


def without_end_token(
    tokens: Sequence[int], status: int, stop_token_ids: Sequence[int] = ()
) -> Sequence[int]:
    """Returns a row's tokens without the one that ended it, which is not text, special or not."""
    from jspec.types import Status

    stops = status == Status.STOP and len(tokens) and tokens[-1] in stop_token_ids
    return tokens[:-1] if stops or status == Status.EOS else tokens


def without_end(text: str, num_bytes: int) -> str:
    """Returns a text without its last bytes, a stop string."""
    return text.encode()[:-num_bytes].decode(errors="ignore") if num_bytes else text
