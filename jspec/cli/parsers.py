"""Parsers of the command line, which refuse invalid values in one sentence."""

from collections.abc import Sequence

import typer

from jspec._validate.errors import InputError


def integer(text: str) -> int:
    """Parses a whole number, and refuses others in one sentence."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an integer") from None


def number(text: str) -> float:
    """Parses a number, and refuses others in one sentence."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def text(value: str) -> str:
    """Parses a text, and refuses bytes of another encoding than UTF-8 in one sentence."""
    try:
        value.encode()
    except UnicodeEncodeError:  # such bytes arrive as halves of UTF-16 pairs
        raise typer.BadParameter(f"{value!r:.60} is not UTF-8; encode it so") from None
    return value


def named_folders(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Returns the folders of options such as `--lora NAME=DIR`, by their names."""
    folders: dict[str, str] = {}
    for text in texts:
        name, _, folder = text.partition("=")
        if not name or not folder:
            raise InputError(f"{option} is {text!r:.80}; pass NAME=DIR, such as sql=./adapters/sql")
        if name in folders:
            raise InputError(f"{option} has the name {name!r:.80} twice; give each its own")
        folders[name] = folder
    return folders
