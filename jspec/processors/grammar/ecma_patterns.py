r"""Patterns of JSON schemas, which are ECMA-262's, in the syntax of Rust's `regex`.

What both write alike and mean otherwise is written anew: `\d` is 0 to 9 there and any digit here.
What only Rust knows is refused, so that a text of the pattern is one for every validator.
"""

import re
import unicodedata

from jspec._validate.errors import InputError
from jspec.processors.grammar.regex_syntax import check_groups, end_of_part, without_anchors

_PLAIN = r'[^"\\\x00-\x1F\x7F-\x9F]'
"""The letters that stand for themselves in JSON text."""
_ANY = r"[\u2028\u2029]"
"""Ends of lines alongside those that JSON escapes, which a dot does not match."""
_SPACES = r"\t\n\x0B\x0C\r \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
_KINDS = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACES}
"""ECMA-262, 22.2.2.9: the letters of an escape; its capital stands for all others."""
_FOREIGN = re.compile(r"\\[aAzQEhHRXNLU<>]|\\b\{|\(\?[a-zA-Z-]*[a-zA-OQ-Z-][:)]|\{,")
"""Syntax of Rust that ECMA lacks or reads otherwise: escapes, flags, `{,n}`."""
_IN_CLASS = re.compile(r"\[|&&|--|~~")
"""Operations on classes, whose letters are letters in ECMA."""


def json_text(pattern: str, what: str) -> str:
    r"""A pattern that matches the same texts, but for those that JSON has to escape."""
    check_groups(pattern, f"the pattern of {what}")
    pattern = without_anchors(pattern)
    parts, place = [], 0
    while place < len(pattern):
        letter = pattern[place]
        if letter == '"':
            raise InputError(f"{what} has a pattern with a quotation mark; leave it out")
        if unicodedata.category(letter) == "Cc":
            raise InputError(
                f"{what} has a pattern with {letter!r}, which JSON escapes; leave it out"
            )
        if foreign := _FOREIGN.match(pattern, place):
            raise InputError(
                f"{what} has a pattern with {foreign[0]!r}, which ECMA-262 does not know; leave it "
                "out"
            )
        end = end_of_part(pattern, place)
        part = pattern[place:end]
        if letter == ".":
            part = f"[{_PLAIN}--{_ANY}]"
        elif letter == "[":
            part = f"[{_class(part, what)}&&{_PLAIN}]"
        elif part == r"\b":
            part = r"(?-u:\b)"
        elif part == r"\B":
            raise InputError(rf"{what} has a pattern with \B, which no grammar holds; leave it out")
        elif letter == "\\":
            part = f"[{_letters(part)}&&{_PLAIN}]"
        parts.append(part)
        place = end
    # In a group: the text around it does not belong to the first of its choices.
    return f"(?:{''.join(parts)})"


def _letters(escape: str) -> str:
    """Returns an escape as a class, or as a part of one."""
    kind = escape[1:2]
    if kind in _KINDS:
        return f"[{_KINDS[kind]}]"
    return f"[^{_KINDS[kind.lower()]}]" if kind.lower() in _KINDS else escape


def _class(part: str, what: str) -> str:
    """Returns a class of letters."""
    place = 2 if part.startswith("[^") else 1
    parts = [part[:place]]
    if part[place : place + 1] == "]":
        raise InputError(f"{what} has a pattern with an empty class; write \\] for the bracket")
    while place < len(part):
        if match := _IN_CLASS.match(part, place):
            raise InputError(
                f"{what} has a pattern with {match[0]!r} in a class, which is read in two ways; "
                "write \\ before the letter"
            )
        if part[place] == "\\" and (foreign := _FOREIGN.match(part, place)):
            raise InputError(
                f"{what} has a pattern with {foreign[0]!r} in a class, which ECMA-262 does not "
                "know; leave it out"
            )
        end = end_of_part(part, place)
        escape = part[place:end]
        if escape == r"\b":
            escape = r"\x08"
        parts.append(_letters(escape) if escape.startswith("\\") else escape)
        place = end
    return "".join(parts)
