"""The command line: the script `jspec`, and `python -m jspec`."""

import sys

from jspec._validate import extras
from jspec._validate.errors import InputError


def main() -> None:
    """Runs the command line; says in one sentence if an extra is missing."""
    try:
        extras.require("the command line", "cli", "typer", "rich", "jinja2")
    except InputError as error:
        sys.exit(f"jspec: {error}")
    from jspec.cli.main import main

    main()


if __name__ == "__main__":
    main()
