"""Annotations of jspec, checked while the tests run: shapes, dtypes and types.

`conftest.py` installs jaxtyping's import hook with `types` as the type checker. All of the cost is
paid while JAX traces.
"""

import functools
import re
import types as python
import typing
from typing import Any

import jax
import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray


def types(function):
    """`beartype`, but for what it cannot know.

    Protocols say what a class has and not what it is. A sum of axes is known where each is an axis
    of an argument. JAX makes pytrees with something else than arrays in their places.
    """
    hints = function.__annotations__
    given = " ".join(_axes([hint for name, hint in hints.items() if name != "return"]))
    names = set(re.findall(r"(?<![\w+*/-])[a-zA-Z]\w*(?![\w+*/-])", given))
    function.__annotations__ = {name: _known(hint, names) for name, hint in hints.items()}
    # An int is a float, as in PEP 484.
    checked = beartype(function, conf=BeartypeConf(is_pep484_tower=True))
    if function.__name__ != "__init__":
        return checked

    @functools.wraps(function)
    def made(*args, **kwargs):
        leaves = jax.tree.leaves((args[1:], kwargs))
        plain = all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
        return (checked if plain else function)(*args, **kwargs)

    return made


def _is_array(hint) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)


def _axes(hints) -> list[str]:
    found = [hint.dim_str for hint in hints if _is_array(hint)]
    return found + [axes for hint in hints for axes in _axes(typing.get_args(hint))]


def _known(hint, names: set[str]):
    """The hint with `Any` in the place of protocols, and `_` of sums of other axes than `names`."""
    if getattr(hint, "_is_protocol", False):
        return Any
    if _is_array(hint):
        axes = [
            "_" if re.search(r"\w[+*/-]", axis) and set(re.findall(r"[a-zA-Z]\w*", axis)) - names
            else axis
            for axis in hint.dim_str.split()
        ]  # fmt: skip
        # Where an array of JAX is asked for, one of NumPy does.
        kind = jax.Array | np.ndarray if hint.array_type is jax.Array else hint.array_type
        return hint.dtype[kind, " ".join(axes)]
    if isinstance(hint, python.UnionType) or typing.get_origin(hint) is typing.Union:
        parts = [_known(part, names) for part in typing.get_args(hint)]
        return Any if Any in parts else typing.Union[tuple(parts)]  # noqa: UP007
    parts = typing.get_args(hint)
    known = tuple(_known(part, names) for part in parts)
    if known == parts:
        return hint
    origin = typing.get_origin(hint)
    return origin[known] if origin in (tuple, list, dict) else Any
