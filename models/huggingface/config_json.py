"""Typed reading of config.json, whose errors name field, value, bound and fix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from jspec._validate import plain_json
from jspec._validate.errors import InputError

_MOST_LAYERS = 8192


@dataclass(frozen=True)
class Settings:
    """The fields of one JSON file. A null field counts as an absent one, as in `transformers`."""

    values: Mapping[str, Any]
    source: str
    """The file that the fields come from, for messages."""

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        """Returns a positive integer; without a default the field has to be there."""
        value = self.get(name, default)
        if value is None:
            raise InputError(f"{self.source} has no field {name!r}; add it as a positive integer")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(
                f"{self.source} has {name} = {value!r}; it has to be an integer of at least 1"
            )
        return value

    def count(self, name: str, default: int | None = None, max_count: int = _MOST_LAYERS) -> int:
        """Returns the number of layers or experts, bounded against damaged files."""
        value = self.size(name, default)
        if value > max_count:
            raise InputError(
                f"{self.source} has {name} = {value}; it has to be at most {max_count}"
            )
        return value

    def natural(self, name: str, default: int) -> int:
        """Returns an integer of at least 0."""
        value = self.get(name, default)
        if type(value) is not int or value < 0:
            raise InputError(
                f"{self.source} has {name} = {value!r:.60}; it has to be an integer of at least 0"
            )
        return value

    def text(self, name: str) -> str | None:
        """Returns a text; None where the field is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise InputError(f"{self.source} has {name} = {value!r:.60}; it has to be a text")
        return value

    def token(self, name: str) -> int | None:
        """Returns a token; None where the field is absent."""
        value = self.get(name)
        if value is not None and (type(value) is not int or value < 0):
            raise InputError(f"{self.source} has {name} = {value!r:.60}; it has to be a token id")
        return value

    def divisor(self, name: str, total: int, default: int | None = None) -> int:
        """Returns a positive integer that divides `total`, as heads divide the hidden size."""
        value = self.size(name, default)
        if total % value:
            raise InputError(
                f"{self.source} has {name} = {value}, which does not divide {total}; correct it"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a positive number; without a default the field has to be there."""
        value = self.get(name, default)
        if value is None:
            raise InputError(f"{self.source} has no field {name!r}; add it as a positive number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise InputError(f"{self.source} has {name} = {value!r}; it has to be above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise InputError(f"{self.source} has {name} = {value!r}; it has to be true or false")
        return value

    def choice(self, name: str, allowed: Sequence[Any], default: Any) -> Any:
        """Returns a value among those that the project implements."""
        value = self.get(name, default)
        if value not in allowed:
            listed = ", ".join(repr(option) for option in allowed)
            raise InputError(
                f"{self.source} has {name} = {value!r}, which jspec does not implement; "
                f"supported: {listed}"
            )
        return value

    def list_of(self, name: str, kind: type, default: Sequence[Any]) -> Sequence[Any]:
        """Returns a list whose entries are of one kind."""
        value = self.get(name, default)
        if not isinstance(value, list | tuple) or not all(type(entry) is kind for entry in value):
            raise InputError(
                f"{self.source} has {name} = {value!r:.60}; it has to be a list of {kind.__name__}"
            )
        return value

    def part(self, name: str) -> "Settings":
        """Returns the object under a field; an empty one where the field is absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise InputError(f"{self.source} has {name} = {value!r}; it has to be an object")
        return Settings(value, f"{name} in {self.source}")


def read(file: Path, required: bool = True) -> Settings:
    """Reads a JSON object; without fields if it is neither there nor required."""
    if not required and not file.is_file():
        return Settings({}, str(file))
    try:
        values = plain_json.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON ({error}); restore the file") from error
    if not isinstance(values, Mapping):
        raise InputError(f"{file} holds a {type(values).__name__}; it has to be a JSON object")
    return Settings(values, str(file))
