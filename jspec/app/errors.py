"""What is said of an error."""

import sys


def complain(message: str) -> None:
    """One line on standard error."""
    print(f"jspec: {' '.join(message.split())}", file=sys.stderr)
