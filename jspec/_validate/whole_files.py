"""Files that are whole or absent, despite interruptions and concurrent writers."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a place to write to, which becomes the file by one rename when the block ends.

    A process killed in between leaves the file as it was, and of two that write at once one wins.

    Args:
        path: of the file; its folder is made.

    Raises:
        OSError: if it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with written_whole(Path(folder) / "new" / "file") as part:
        ...         _ = part.write_text("all of it")
        ...     [file.name for file in (Path(folder) / "new").iterdir()]
        ['file']
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: threads of one process write too, and processes of other machines.
    part = file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")
    try:
        yield part
        part.replace(file)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
