"""The commands of `jspec datastore`, which import JAX only to run."""

from pathlib import Path
from typing import Annotated

import typer

datastore_app = typer.Typer(help="Make a datastore for the method `rest`.", no_args_is_help=True)


@datastore_app.callback()
def group() -> None:
    """Make a datastore for the method `rest`."""


@datastore_app.command("build")
def build(
    text: Annotated[
        list[Path], typer.Argument(help="Text or JSON-lines files, or folders of them.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The datastore file to write.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|ID",
            help="The target, whose tokenizer reads the text.",
            show_default="the bundled model",
        ),
    ] = None,
    template: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="Template that turns a JSON row into text, such as '{question}\\n{answer}'.",
            show_default="all its strings",
        ),
    ] = "",
) -> None:
    """Make a datastore of text: its tokens, and their suffix array."""
    from jspec.cli import build_datastore

    build_datastore.run(text, out, model, template)
