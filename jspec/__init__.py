"""Lossless speculative decoding for JAX as one pure function: `jspec.decode`.

The public names are listed in `jspec.public` and imported on first use (PEP 562): JAX takes a
second to import, and `jspec --help` shall not wait for it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jspec.public import *  # noqa: F403


def __getattr__(name: str):
    if not name.startswith("_"):
        # Modules go first and alone: they import one another through here while they load.
        if find_spec(f"jspec.{name}") is not None:
            return import_module(f"jspec.{name}")
        public = vars(import_module("jspec.public"))
        if name in public:
            globals()[name] = public[name]
            return public[name]
    raise AttributeError(f"module 'jspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [name for name in vars(import_module("jspec.public")) if not name.startswith("_")]
