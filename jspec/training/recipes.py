"""Recipe files: tables of TOML with values of the settings' kinds."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError

_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}


def read(path: Path) -> dict[str, Any]:
    """Returns the whole file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name a recipe file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); convert it") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}; correct it") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deep to be read; make it flatter") from None


def part(table: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Returns a table in a table; {} if there is none."""
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise InputError(f"{path} has {name} = {value!r:.40}, which is not a table; write [{name}]")
    return value


def check_like(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raises InputError unless each value is of its default's kind."""
    for name, value in values.items():
        kind = type(defaults.get(name))
        fits = type(value) is kind or (kind is float and type(value) is int)
        if kind in _KINDS and not fits:
            raise InputError(f"{name} is {value!r:.40}; use {_KINDS[kind]}")
