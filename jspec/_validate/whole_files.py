"""Files that are whole or absent, despite interruptions and concurrent writers."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a place for a file or a folder, which takes its name when the block ends.

    A process killed in between leaves the file as it was, and of two that write at once one wins.
    """
    file = Path(path)
    # A name of its own: threads of one process write too, and processes of other machines.
    part = file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")
    with writing(path):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            part.replace(file)
        finally:
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file, whole or not at all."""
    with written_whole(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises an OSError that names the file where the block cannot write it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(
            f"{path} could not be written ({reason}); make room, or name another place"
        ) from error
