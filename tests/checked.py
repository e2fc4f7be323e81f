"""Annotations of arrays, checked while the tests run: shapes and dtypes.

`conftest.py` calls `install`. All of the cost is paid while JAX traces. Other annotations are
pyright's: a test may pass nonsense to see it refused.
"""

import dataclasses
import functools
import re
import types
import typing
from typing import Any

import jax
import jaxtyping
import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_BESIDE = (type(None), bool, int, float)
"""Types that may be joined with an array in a union."""
_ALONE = r"(?<![\w+*/-])[a-zA-Z]\w*(?![\w+*/-])"


_scope = functools.partial(jaxtyping.jaxtyped, "context")
"""Axes have the same sizes in all of a call."""


def install() -> None:
    """Checks what is imported of jspec from now on.

    jaxtyping's own decorator wraps each function, takes longer than most of them, and checks
    arguments twice: a fifth of a run.
    """
    jaxtyping.jaxtyped = lambda *, typechecker: typechecker
    jaxtyping.install_import_hook(["jspec"], "checked.arrays")


def arrays(made):
    """`beartype` for the annotations that are arrays, or unions and tuples of them.

    Args:
        made: a function, or a class, of which a dataclass' fields are checked.
    """
    if isinstance(made, type):
        if dataclasses.is_dataclass(made) and not hasattr(made.__init__, "__wrapped__"):
            made.__init__ = arrays(made.__init__)
        return made
    hints = made.__annotations__
    given = " ".join(_axes([hint for name, hint in hints.items() if name != "return"]))
    names = set(re.findall(_ALONE, given))
    known = {name: _checkable(hint, names) for name, hint in hints.items()}
    known |= {name: Any for name in known if name == "state"}  # another drafter's is refused
    if not _axes(list(known.values())):
        return made
    made.__annotations__ = known
    # An int is a float, as in PEP 484.
    inner = beartype(made, conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))
    made.__annotations__ = hints

    @functools.wraps(made)
    def checked(*args, **kwargs):
        if jaxtyping.config.jaxtyping_disable:  # a test's own wish
            return made(*args, **kwargs)
        # JAX makes pytrees with something else than arrays in their places.
        if made.__name__ == "__init__" and not all(
            isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves((args[1:], kwargs))
        ):
            return made(*args, **kwargs)
        with _scope():
            return inner(*args, **kwargs)

    return checked


def _is_array(hint) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)


def _axes(hints) -> list[str]:
    found = [hint.dim_str for hint in hints if _is_array(hint)]
    return found + [axes for hint in hints for axes in _axes(typing.get_args(hint))]


def _checkable(hint, names: set[str]):
    """The hint, or `Any` if not an array. A sum of axes is known where each is in `names`."""
    if _is_array(hint):
        axes = [
            "_" if set(re.findall(r"[a-zA-Z]\w*", axis)) - names and not _plain(axis) else axis
            for axis in hint.dim_str.split()
        ]
        # Where an array of JAX is asked for, one of NumPy does.
        kind = jax.Array | np.ndarray if hint.array_type is jax.Array else hint.array_type
        return hint.dtype[kind, " ".join(axes)]
    if not _axes([hint]):
        return Any
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    known = [part if part in _BESIDE else _checkable(part, names) for part in parts]
    if origin in (types.UnionType, typing.Union):
        return Any if Any in known else typing.Union[tuple(known)]  # noqa: UP007
    known = [part if part is ... else new for part, new in zip(parts, known, strict=True)]
    return origin[tuple(known)] if origin in (tuple, list, dict) else Any


def _plain(axis: str) -> bool:
    """Returns whether an axis is a name, a number or a modifier, and no formula."""
    return re.fullmatch(r"[*#_?]*\w*|\.\.\.", axis) is not None
