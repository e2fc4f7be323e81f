"""Parsers of numbers on the command line, which refuse others in one sentence."""

import typer


def integer(text: str) -> int:
    """Parses a whole number, and refuses others in one sentence."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no integer") from None


def number(text: str) -> float:
    """Parses a number, and refuses others in one sentence."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number") from None
