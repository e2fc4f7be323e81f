r"""Where the parts of a regular expression end, in the syntax of Rust's `regex`."""

from jspec._validate.errors import InputError


def end_of_part(pattern: str, place: int) -> int:
    r"""The end of the class, the escape or the letter that begins at a place."""
    if pattern[place] == "[":
        return _end_of_class(pattern, place)
    return _end_of_escape(pattern, place) if pattern[place] == "\\" else place + 1


def check_groups(pattern: str, what: str) -> None:
    r"""Raises InputError unless each parenthesis has its other one.

    Within others of its own an expression such as `a)|(b` would be one.
    """
    place, depth = 0, 0
    while place < len(pattern) and depth >= 0:
        depth += {"(": 1, ")": -1}.get(pattern[place], 0)
        place = end_of_part(pattern, place)
    if depth:
        raise InputError(f"{what} has a parenthesis without its other one; add it")


def without_anchors(pattern: str) -> str:
    r"""The pattern without `^` before it and `$` behind it."""
    pattern = pattern.removeprefix("^")
    body = pattern.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2
    return pattern if escaped else body


def _end_of_class(pattern: str, place: int) -> int:
    """Returns the end of a class of letters, others within it."""
    depth, first = 0, False
    while place < len(pattern):
        letter = pattern[place]
        if letter == "\\":
            place = _end_of_escape(pattern, place)
            first = False
            continue
        if letter == "[":
            depth += 1
        elif letter == "]" and not first:
            depth -= 1
            if not depth:
                return place + 1
        # Right behind the opening, a closing bracket is a letter.
        first = letter == "[" or (first and letter == "^")
        place += 1
    return len(pattern)


def _end_of_escape(pattern: str, place: int) -> int:
    r"""The end of `\d`, `\x1F`, `\u{1F600}` or `\p{Greek}`."""
    end = place + 2
    if pattern[place + 1 : end] in ("x", "u", "U", "p", "P"):
        if pattern[end : end + 1] == "{":
            close = pattern.find("}", end)
            return len(pattern) if close < 0 else close + 1
        return end + {"x": 2, "u": 4, "U": 8}.get(pattern[place + 1], 1)
    return end
