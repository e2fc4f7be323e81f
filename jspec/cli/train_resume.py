"""What a run of `jspec train` was asked for, kept in its folder for `--resume`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jspec._validate import plain_json
from jspec._validate.errors import InputError

COMMAND = "command.json"


def asked(out: Path, resume: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a run: those given, and under `resume` those that it was begun with.

    Args:
        out: folder of the run.
        resume: whether it goes on.
        given: the arguments as JSON values by name; None is one that was not given. `changes` is
            a mapping of its own, merged setting by setting.

    Raises:
        InputError: if the folder's record cannot be read.
    """
    file = out / COMMAND
    if not resume or not file.is_file():
        return dict(given)
    try:
        begun = plain_json.parsed(file.read_text(encoding="utf-8"))
        changes = {**begun.pop("changes", {}), **given["changes"]}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"{file} does not say what the run was begun with ({error}); delete it and give all "
            "options again"
        ) from None
    kept = {name: value for name, value in given.items() if value is not None}
    return {**dict.fromkeys(given), **begun, **kept, "changes": changes}


def remember(out: Path, arguments: Mapping[str, Any]) -> None:
    """Writes the arguments into the folder of a run, which is there."""
    text = json.dumps(dict(arguments), indent=2, sort_keys=True)
    (out / COMMAND).write_text(text + "\n", encoding="utf-8")


def absolute(argument: str) -> str:
    """A path, or CLASS=PATH, that is found from any folder; all else as it is."""
    label, equals, path = argument.partition("=")
    if Path(argument).exists():
        return str(Path(argument).resolve())
    return f"{label}={Path(path).resolve()}" if equals and Path(path).exists() else argument
