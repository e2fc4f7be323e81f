"""The command `jspec warm`. The work is in a file of its own, so that `--help` needs no JAX."""

import os
from pathlib import Path
from typing import Annotated

import typer

from jspec._validate.errors import InputError
from jspec.cli import options


def warm(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, GGUF file, hub id, or a name.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the table to this file alone, which the option ngrams of auto takes.",
            show_default="the user's cache, where auto finds it",
        ),
    ] = None,
    dtype: options.Dtype = None,
) -> None:
    """Make what auto drafts from where a model has no n-gram table, and compile its programs."""
    if out is not None and (out.is_dir() or not os.access(out.absolute().parent, os.W_OK)):
        raise InputError(f"--out {out} cannot be written; name a file in a folder that exists")

    # From here on JAX is imported.
    from jspec.cli import warming
    from jspec.sessions import compilation

    compilation.keep_on_disk()
    warming.run(model, out, dtype)
