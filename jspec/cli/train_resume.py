"""Settings of a run of `jspec train`, kept in its folder for `--resume`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jspec._validate import plain_json
from jspec._validate.errors import InputError
from jspec._validate.whole_files import write_whole

COMMAND = "command.json"


def resume_arguments(
    out: Path,
    resume: bool,
    text: Sequence[str] | None,
    paths: Mapping[str, Path | None],
    fields: Mapping[str, str | None],
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns a run's arguments: the given ones, over the original ones with `resume`."""
    arguments: dict[str, Any] = {
        name: path and str(path.absolute()) for name, path in paths.items()
    }
    arguments |= {**fields, "text": [absolute(part) for part in text] if text else None}
    file = out / COMMAND
    if not resume or not file.is_file():
        return {**arguments, "changes": dict(changes)}
    try:
        original = plain_json.parse(file.read_text(encoding="utf-8"))
        changes = {**original.pop("changes", {}), **changes}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"{file} does not say what the run was begun with ({error}); delete it and give all "
            "options again"
        ) from None
    overrides = {name: value for name, value in arguments.items() if value is not None}
    return {**dict.fromkeys(arguments), **original, **overrides, "changes": changes}


def remember(out: Path, arguments: Mapping[str, Any]) -> None:
    """Writes the arguments into the folder of a run, which is there."""
    text = json.dumps(dict(arguments), indent=2, sort_keys=True)
    write_whole(out / COMMAND, text + "\n")


def path(arguments: Mapping[str, Any], name: str) -> Path | None:
    """Returns an argument that is a path."""
    return None if arguments[name] is None else Path(arguments[name])


def absolute(argument: str) -> str:
    """Returns a path, or CLASS=PATH, that is found from any folder; all else as it is."""
    label, equals, path = argument.partition("=")
    if Path(argument).exists():
        return str(Path(argument).resolve())
    return f"{label}={Path(path).resolve()}" if equals and Path(path).exists() else argument
