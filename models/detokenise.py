"""Text as it comes, piece by piece; the pieces join to the whole text decoded at once."""

import codecs
from collections.abc import Sequence
from typing import Any

from jspec.models import reasoning


class Detokeniser:
    """Decodes what a row adds to its prompt as it comes, in time linear in its length.

    A character may span several tokens: it comes with the last of them. The prompt's text and all
    pieces join to the text of all tokens. A character that the prompt leaves unfinished is of the
    first piece if that ends it.

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

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()):
        self._prompt = prompt
        self._vocabulary = reasoning.readable(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        end, place = b"", len(prompt)
        while place and len(end) < 4:  # the longest character
            place -= 1
            end = (self._vocabulary.bytes_of(prompt[place]) or b"") + end
        self._decoder.decode(end)
        self._unfinished = self._decoder.getstate()[0]
        self._decoder.reset()
        self._drops_space = self._vocabulary.drops_space and not end
        self._begun = False
        self._held = b""
        self.num_letters = 0
        """Of all pieces that were pushed."""

    @property
    def prompt(self) -> str:
        """The prompt's text, up to a character that its last tokens leave unfinished."""
        return Detokeniser(self._vocabulary).push(self._prompt)

    def push(self, tokens: Sequence[int], stop_bytes: int = 0) -> str:
        """Returns the text that is certain after more tokens; often nothing within a character.

        Args:
            tokens: the next ones.
            stop_bytes: the bytes at their end that may become a stop string, and wait.
        """
        text = self._held + self._bytes(tokens)
        size = max(len(text) - stop_bytes, 0)
        self._held = text[size:]
        piece = self._decoder.decode(text[:size])
        self.num_letters += len(piece)
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
        from jspec.types import Status

        stops = status == Status.STOP and len(tokens) and tokens[-1] in stop_token_ids
        # The token that ended a row is not text, special or not.
        text = tokens[:-1] if stops or status == Status.EOS else tokens
        rest = self._decoder.getstate()[0] + self._held + self._bytes(text)
        self._held = b""
        self._decoder.reset()
        stop_bytes -= self.num_bytes(tokens[len(text) :])
        return rest[: len(rest) - min(max(stop_bytes, 0), len(rest))].decode("utf-8", "replace")

    def num_bytes(self, tokens: Sequence[int]) -> int:
        """Returns the bytes of tokens as text."""
        return sum(len(self._vocabulary.bytes_of(token) or b"") for token in tokens)

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        new = b"".join(self._vocabulary.bytes_of(token) or b"" for token in tokens)
        if new and not self._begun:
            self._begun = True
            if new[0] & 0xC0 == 0x80:  # it goes on within a character
                new = self._unfinished + new
            elif self._drops_space:
                new = new.removeprefix(b" ")
        return new
