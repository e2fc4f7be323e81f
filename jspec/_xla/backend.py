"""The platform that programs are made for: the one at hand, or one that is only planned for."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

_PLANNED: ContextVar[str | None] = ContextVar("planned", default=None)


def platform() -> str:
    """Returns the name of the platform: "cpu", "gpu" or "tpu"."""
    return _PLANNED.get() or jax.default_backend()


@contextmanager
def plan_for(name: str) -> Iterator[None]:
    """Yields a context in which sizes are chosen for a platform that need not be here."""
    token = _PLANNED.set(name)
    try:
        yield
    finally:
        _PLANNED.reset(token)


class Jitted:
    """A jitted function of a platform, which is found in Python before anything is traced.

    It is a static argument, so that a program of one platform is never taken for another's.
    """

    def __init__(
        self, function: Callable[..., Any], static_argnames: Sequence[str] = (), **options: Any
    ):
        functools.update_wrapper(self, function)
        names = (*static_argnames, "platform")
        self._jitted: Any = jax.jit(function, static_argnames=names, **options)
        self._cache_size = self._jitted._cache_size

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **{"platform": platform()} | kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers the function for these arguments, or for their shapes."""
        return self._jitted.lower(*args, **{"platform": platform()} | kwargs)
