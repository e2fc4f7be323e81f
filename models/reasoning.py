"""The parts of an answer: what a model thinks, and what it says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

THOUGHTS, CONTENT = "thoughts", "content"
_HEADER, _FINAL = "header", "final"
"""Parts that say whose text or which channel follows; nobody is shown them."""


@dataclass(frozen=True)
class Marks:
    """How a family parts its answers.

    Args:
        parts: the part that begins behind each mark; None: the one that its header names.
        opening: a mark that thoughts begin with.
        closing: the tokens behind which the content begins.
    """

    parts: Mapping[str, str | None]
    opening: str
    closing: tuple[str, ...]


THINK = Marks({"<think>": THOUGHTS, "</think>": CONTENT}, "<think>", ("</think>",))
FAMILIES = (
    Marks(
        {"<|start|>": _HEADER, "<|end|>": _HEADER, "<|channel|>final": _FINAL,
         "<|channel|>": _HEADER, "<|message|>": None},
        "<|channel|>", ("<|channel|>", "final", "<|message|>"),
    ),
    Marks(
        {"<|channel>thought\n": THOUGHTS, "<|channel>": THOUGHTS, "<channel|>": CONTENT},
        "<|channel>", ("<channel|>",),
    ),
    THINK,
)  # fmt: skip
"""Harmony's (gpt-oss), Gemma 4's, and those of Qwen3, DeepSeek and many others."""


class Lead(NamedTuple):
    """The tokens before an answer's content, for `jspec.processors.grammar.masks.behind`."""

    opening: int
    closing: tuple[int, ...]
    inside: bool
    """True if the prompt has opened the thoughts."""


def marks_of(tokenizer: Any, template: str = "") -> Marks | None:
    """Returns the marks that a chat template writes or a vocabulary has as tokens."""
    for marks in FAMILIES:
        if all(mark in template for mark in marks.closing):
            return marks
    id_of = getattr(tokenizer, "token_to_id", lambda mark: None)
    for marks in FAMILIES:
        if id_of(marks.opening) is not None and id_of(marks.closing[-1]) is not None:
            return marks
    return None


def begins(tokenizer: Any, marks: Marks | None, prompt: Sequence[int]) -> str | None:
    """Returns the part in which the prompt leaves the answer; None if it does not say."""
    text = readable(tokenizer).decode(list(prompt[-8:])).rstrip() if marks and prompt else ""
    ends = [mark for mark in marks.parts if text.endswith(mark.rstrip())] if marks else ()
    return marks.parts[max(ends, key=len)] if marks and ends else None


def lead(tokenizer: Any, marks: Marks | None, prompt: Sequence[int]) -> Lead | None:
    """Returns what a grammar waits for; None if the content begins at once, or the vocabulary has
    not each mark as a token.
    """
    part = begins(tokenizer, marks, prompt)
    ids = [tokenizer.token_to_id(one) for one in (marks.opening, *marks.closing)] if marks else []
    if not ids or None in ids or part == CONTENT:
        return None
    return Lead(ids[0], tuple(ids[1:]), part == THOUGHTS)


class Parts:
    """Parts an answer as it comes.

    Args:
        marks: of the family; None: all is content.
        part: where it begins; "" if nobody knows, so that nothing is certain before a mark.

    Example:
        >>> parts = Parts(THINK)
        >>> parts.read("<think>I add.</thi", False), parts.read("nk>Four", True)
        (('I add.', ''), ('', 'Four'))
    """

    def __init__(self, marks: Marks | None, part: str | None = None):
        self._marks = marks.parts if marks else {}
        longest = sorted(self._marks, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest))})")
        self._part = CONTENT if part is None else part
        self._unread = self._space = ""
        self._parted, self._thought, self._said = bool(part), False, False

    def read(self, text: str, is_last: bool) -> tuple[str, str]:
        """Returns the thoughts and the content that are certain after more text."""
        if not self._marks:
            return "", text
        text, self._unread = self._unread + text, ""
        if not is_last:
            starts = range(max(0, len(text) - max(map(len, self._marks)) + 1), len(text))
            begun = (n for n in starts if any(mark.startswith(text[n:]) for mark in self._marks))
            end = 0 if not self._part and not self._split.search(text) else next(begun, len(text))
            text, self._unread = text[:end], text[end:]
        pieces, thoughts, said = self._split.split(text), "", ""
        if not self._part and text:
            closed = len(pieces) > 1 and self._marks[pieces[1]] == CONTENT
            self._part, self._parted = (THOUGHTS, True) if closed else (CONTENT, False)
        for place, piece in enumerate(pieces):
            if place % 2:
                part = self._marks[piece] or (CONTENT if self._part == _FINAL else THOUGHTS)
                self._space = "\n\n" if part == THOUGHTS and self._thought else ""
                self._part, self._parted = part, True
            elif self._part == THOUGHTS:
                thoughts += self._without_end(piece, not self._thought)
                self._thought |= bool(thoughts)
            elif self._part == CONTENT and not self._said:
                # White space is of the content if no thoughts follow or come before.
                piece = (self._space + piece).lstrip() if self._parted else self._space + piece
                self._space = "" if piece.strip() or is_last else piece
                said += piece.removesuffix(self._space) if self._space else piece
                self._said = bool(said)
            elif self._part == CONTENT:
                said += piece
        return thoughts, said

    def _without_end(self, piece: str, is_first: bool) -> str:
        """Returns thoughts without white space around them; that within follows with more."""
        piece = piece.lstrip() if is_first else self._space + piece
        body = piece.rstrip()
        self._space = piece[len(body) :]
        return body


class _Readable:
    """A tokenizer that writes the marks of parts although it calls them special."""

    def __init__(self, tokenizer: Any, marks: set[int]):
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._silent = {one for one, token in added.items() if token.special} - marks
        self.id_to_token = tokenizer.id_to_token

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        del skip_special_tokens
        shown = [token for token in ids if token not in self._silent]
        return self._tokenizer.decode(shown, skip_special_tokens=False)


def readable(tokenizer: Any) -> Any:
    """Returns a tokenizer in whose texts the parts of an answer can be told apart."""
    marks = marks_of(tokenizer)
    ids = {tokenizer.token_to_id(mark) for mark in marks.parts} - {None} if marks else set()
    special = any(not tokenizer.decode([token, token]) for token in ids)
    return _Readable(tokenizer, ids) if special else tokenizer
