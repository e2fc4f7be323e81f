"""The file of `--memory`: what a method learns, kept from run to run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from jspec._validate.errors import InputError

if TYPE_CHECKING:
    from jspec.models import Loaded
    from jspec.protocols import Drafter
    from jspec.types import PyTree


class MemoryFile:
    """A drafter's memory on disk, which the next run of the same model and method begins with."""

    def __init__(self, path: Path, target: "Loaded", drafter: "Drafter"):
        from jspec.drafters import memory_file as memory
        from jspec.models.fingerprint import fingerprint

        memory.check_outlives(drafter)
        folder = path.absolute().parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InputError(
                f"--memory is {path}, which cannot be written; give a file in a folder that is "
                "there"
            )
        kind, weights = type(target.model).__name__, fingerprint(target.params)[:16]
        self._about = f"a {kind} whose weights have the fingerprint {weights}"
        self._path, self._drafter = path, drafter

    def read(self) -> "PyTree":
        """Returns the memory that the file holds; None if there is no file yet."""
        from jspec.drafters import memory_file as memory

        if not self._path.exists():
            return None
        return memory.load(self._path, self._drafter, self._about)

    def write(self, state: "PyTree") -> None:
        """Keeps a memory for the next run."""
        from jspec.drafters import memory_file as memory

        memory.save(self._path, self._drafter, state, self._about)
