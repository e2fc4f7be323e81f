"""The output of `jspec methods`: the table of methods, and the options of each."""

import sys

from rich import box
from rich.console import Console
from rich.table import Table

from jspec.methods import BUNDLED, BUNDLED_DRAFT, DEFAULT, METHODS, Method

_WIDTH = 100
"""The width of the table where no terminal tells its own."""


def show() -> None:
    """Prints the table, then the options."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in ("draft model", "training", "exact sampling"):
        table.add_column(heading)
    table.add_column("what it drafts")
    for method in METHODS.values():
        facts = (
            _draft_model(method),
            "needed" if method.needs_training else "none",
            "yes" if method.exact else "no",
        )
        default = " (default)" if method.name == DEFAULT else ""
        table.add_row(method.name, *facts, method.summary + default)
    console.print(table)
    console.print(
        f"The draft model of the bundled {BUNDLED} is {BUNDLED_DRAFT} if none is named.\n"
    )
    console.print("Keys of --speculative-config besides method, and options of jspec.LLM:\n")
    for method in METHODS.values():
        if method.options:
            console.print(method.name)
            keys = Table.grid(padding=(0, 2))
            for option in method.options:
                needed = " (needed)" if option.required else ""
                keys.add_row("", option.name, f"{option.help}: {option.kind.what}{needed}")
            console.print(keys)

    from jspec.costs import devices

    console.print(f"\nOn a CPU of this machine: {devices.kernels()}.")


def _draft_model(method: Method) -> str:
    if method.needs_draft_model:
        return "needed"
    return "if given" if method.takes_draft_model else "none"
