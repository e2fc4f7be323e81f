"""The parts of an answer: what a model thinks, and what it says."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jspec.processors.grammar.spelling import Vocabulary

THOUGHTS, CONTENT = "thoughts", "content"
_HEADER, _FINAL = "header", "final"
"""Parts that name a speaker or a channel; nobody is shown them."""


class Marks(NamedTuple):
    """The part behind each mark of a family (None: the one that a header names), a mark that
    opens thoughts, and the tokens behind which the content begins.
    """

    parts: Mapping[str, str | None]
    opening: str
    closing: tuple[str, ...]


THINK = Marks({"<think>": THOUGHTS, "</think>": CONTENT}, "<think>", ("</think>",))
MAGISTRAL = Marks({"[THINK]": THOUGHTS, "[/THINK]": CONTENT}, "[THINK]", ("[/THINK]",))
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
    MAGISTRAL, THINK,
)  # fmt: skip
"""Marks of gpt-oss (Harmony), Gemma 4, Magistral, and of Qwen3, DeepSeek and many others."""

Lead = tuple[int, tuple[int, ...], bool]
"""Tokens of a mark that opens thoughts and of those that close them; whether they are open."""


def marks_of(tokenizer: Any, template: str = "") -> Marks | None:
    """Returns the marks that a chat template writes or a vocabulary has as tokens."""
    id_of = getattr(tokenizer, "token_to_id", lambda mark: None)
    in_text = (family for family in FAMILIES if all(mark in template for mark in family.closing))
    ends = (
        family
        for family in FAMILIES
        if None not in (id_of(family.opening), id_of(family.closing[-1]))
    )
    return next(in_text, None) or next(ends, None)


def begins(tokenizer: Any, marks: Marks | None, prompt: Sequence[int]) -> str | None:
    """Returns the part in which the prompt leaves the answer; None if it does not say."""
    text = readable(tokenizer).text_of(prompt[-8:]).rstrip() if marks else ""
    ends = [mark for mark in marks.parts if text.endswith(mark.rstrip())] if marks else ()
    return marks.parts[max(ends, key=len)] if marks and ends else None


def lead(tokenizer: Any, marks: Marks | None, prompt: Sequence[int]) -> Lead | None:
    """Returns what comes before the content; None: nothing, or a mark of several tokens."""
    part = begins(tokenizer, marks, prompt)
    ids = [tokenizer.token_to_id(mark) for mark in (marks.opening, *marks.closing)] if marks else []
    if not ids or None in ids or part == CONTENT:
        return None
    return ids[0], tuple(ids[1:]), part == THOUGHTS


def parts(tokenizer: Any, marks: Marks | None, prompt: Sequence[int]) -> "Parts":
    """Returns the parts of an answer to a prompt."""
    return Parts(marks, begins(tokenizer, marks, prompt))


class Parts:
    """Parts an answer as it comes; without marks all is content.

    Example:
        >>> parts = Parts(THINK)
        >>> parts.read("<think>I add.</thi", False), parts.read("nk>Four", True)
        (('I add.', ''), ('', 'Four'))
    """

    def __init__(self, marks: Marks | None, part: str | None = None):
        """Begins in a part; "" if nobody knows which, so that nothing is certain till a mark."""
        self._marks = marks.parts if marks else {}
        longest = sorted(self._marks, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest))})")
        self._part = CONTENT if part is None else part
        self._is_parted = bool(part)
        self._nonempty: set[str] = set()
        self._unread = self._space = ""

    def read(self, text: str, is_last: bool) -> tuple[str, str]:
        """Returns the thoughts and the content that are certain after more text."""
        if not self._marks:
            return "", text
        text, self._unread = self._unread + text, ""
        if not is_last:
            starts = range(max(0, len(text) - max(map(len, self._marks)) + 1), len(text))
            cuts = (n for n in starts if any(mark.startswith(text[n:]) for mark in self._marks))
            end = 0 if not self._part and not self._split.search(text) else next(cuts, len(text))
            text, self._unread = text[:end], text[end:]
        pieces, new = self._split.split(text), {THOUGHTS: "", CONTENT: ""}
        if not self._part and text:
            self._is_parted = len(pieces) > 1 and self._marks[pieces[1]] == CONTENT
            self._part = THOUGHTS if self._is_parted else CONTENT
        for place, piece in enumerate(pieces):
            if CONTENT in self._nonempty and None not in self._marks.values():
                new[CONTENT] += self._space + piece  # which may speak of marks
                self._space = ""
            elif place % 2:
                part = self._marks[piece] or (CONTENT if self._part == _FINAL else THOUGHTS)
                self._space = "\n\n" if part == THOUGHTS and part in self._nonempty else ""
                self._part, self._is_parted = part, True
            elif (part := self._part) in new:
                piece, is_nonempty = self._space + piece, part in self._nonempty
                piece = piece.lstrip() if self._is_parted and not is_nonempty else piece
                # White space may be the end of thoughts, or come before them.
                is_end = is_nonempty or (is_last and place + 1 == len(pieces))
                body = piece if part == CONTENT and is_end else piece.rstrip()
                self._space = piece[len(body) :]
                new[part] += body
                self._nonempty |= {part} if body else set()
        return new[THOUGHTS], new[CONTENT]


def readable(tokenizer: Any) -> Vocabulary:
    """Returns a vocabulary whose texts have the marks, special or not."""
    if isinstance(tokenizer, Vocabulary):  # one for all rows of a server
        return tokenizer
    vocabulary, marks = Vocabulary(tokenizer), marks_of(tokenizer)
    for mark in marks.parts if marks else ():
        vocabulary.names.pop(tokenizer.token_to_id(mark), None)
    return vocabulary
