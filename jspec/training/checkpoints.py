"""Checkpoints of a run, its settings, and its loss curve, all in one folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jspec._validate import plain_json
from jspec._validate.errors import InputError, RunStopped, unreadable
from jspec._validate.whole_files import write_whole
from jspec.types import PyTree

SETTINGS = "settings.json"
CURVE = "curve.jsonl"
_FIX = "if it is damaged, restore it from a copy, or delete its folder to go on from the one before"


class CheckpointError(RunStopped):
    """A checkpoint could not be written; the message says which earlier one is whole."""


class Checkpoints:
    """The last two checkpoints of a run, and a line of its curve for every step.

    Orbax writes a checkpoint under a temporary name and renames it when it is whole, so a kill or
    a full disk leaves the one before it.

    Args:
        folder: where the run lives; made if absent.
        settings: what must not change when the run is resumed, as JSON values.
        resume: whether a run that is already there may be continued.

    Raises:
        InputError: for a run that is not to be resumed, has other settings, or is damaged.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], resume: bool = True):
        self.folder = folder.resolve()
        claim(self.folder, settings, resume)
        with unreadable(f"a checkpoint in {self.folder / 'steps'}", _FIX):
            self.manager = ocp.CheckpointManager(
                self.folder / "steps",
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=2, enable_async_checkpointing=False
                ),
            )

    def latest(self) -> int:
        """Returns the step of the last whole checkpoint; 0 if there is none."""
        return self.manager.latest_step() or 0

    def restore(self, state: PyTree) -> tuple[PyTree, int]:
        """Returns (state, step) of the last checkpoint, or the given state at step 0.

        The curve is cut to that step: what came after it will be computed again.

        Raises:
            InputError: if its files are damaged.
        """
        step = self.latest()
        lines = self.curve()[:step]
        write_whole(self.folder / CURVE, "".join(json.dumps(line) + "\n" for line in lines))
        if not step:
            return state, 0
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        with unreadable(f"the checkpoint in {self.folder / f'steps/{step}'}", _FIX):
            return self.manager.restore(step, args=ocp.args.StandardRestore(shapes)), step

    def save(self, step: int, state: PyTree) -> None:
        """Writes a checkpoint and waits until it is whole.

        Raises:
            CheckpointError: if it could not be written, for want of space for instance.
        """
        before = self.latest()
        try:
            self.manager.save(step, args=ocp.args.StandardSave(state))
            self.manager.wait_until_finished()
        except Exception as error:  # orbax and tensorstore raise many kinds for one full disk
            raise failure(f"step {step} has no checkpoint", before, error) from error

    def log(self, line: Mapping[str, Any]) -> None:
        """Adds the next step's line to the curve.

        Raises:
            CheckpointError: if it could not be written.
        """
        try:
            with (self.folder / CURVE).open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise failure(f"{CURVE} cannot grow", self.latest(), error) from error

    def curve(self) -> list[dict[str, Any]]:
        """Returns one line per step so far, up to a line that a kill cut short."""
        path = self.folder / CURVE
        lines: list[dict[str, Any]] = []
        for text in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                lines.append(plain_json.parse(text))
            except json.JSONDecodeError:
                break
        return lines


def failure(what: str, before: int, error: Exception) -> CheckpointError:
    """Returns one sentence for an error whose own text may run over many lines."""
    text = str(error)
    full = "No space left on device"
    reason = full if full in text else (text.splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{what} ({reason}), but the one of step {before} is whole; make room and resume"
    )


def claim(folder: Path, settings: Mapping[str, Any], resume: bool) -> None:
    """Makes the folder this run's, or checks that it is. InputError if it is another's."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / SETTINGS).is_file() and not resume:
        raise InputError(f"{folder} already holds a run; resume it, or name another folder")
    agree(folder / SETTINGS, settings)


def agree(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes the settings of a run, or checks that they are those that it was begun with.

    Raises:
        InputError: if they are not.
    """
    mine = json.loads(json.dumps(settings))
    if not path.is_file():
        write_whole(path, json.dumps(mine, indent=2, sort_keys=True) + "\n")
        return
    try:
        theirs = plain_json.parse(path.read_bytes())
        if not isinstance(theirs, dict):
            raise ValueError(f"it holds a {type(theirs).__name__}")
    except ValueError as error:
        raise InputError(
            f"{path} does not say with which settings the run was begun ({error}); restore it, or "
            "name another folder"
        ) from None
    keys = sorted(mine.keys() | theirs.keys())
    other = [key for key in keys if mine.get(key) != theirs.get(key)]
    if other:
        changes = ", ".join(f"{key} {theirs.get(key)} -> {mine.get(key)}" for key in other)
        raise InputError(
            f"{path.parent} holds a run with other settings ({changes}); restore them, or name "
            f"another folder"
        )
