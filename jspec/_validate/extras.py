"""Packages that an extra of jspec brings, and the sentence where one is missing."""

from importlib.util import find_spec

from jspec._validate.errors import InputError


def require(what: str, extra: str, *modules: str) -> None:
    """Refuses what needs packages that are not installed."""
    for name in modules:
        if find_spec(name) is None:
            raise InputError(
                f"{what} needs {name}, which is not installed; pip install 'jspec-jax[{extra}]'"
            )
