"""The platform that programs are made for: the one at hand, or one that is only planned for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_PLANNED: ContextVar[str | None] = ContextVar("planned", default=None)


def platform() -> str:
    """Returns the name of the platform: "cpu", "gpu" or "tpu".

    Sizes that follow from the device follow from this: the trees of methods, the pieces in which a
    prompt is read, the default dtype.

    Example:
        >>> import jax
        >>> platform() == jax.default_backend()
        True
    """
    return _PLANNED.get() or jax.default_backend()


@contextmanager
def planned(name: str) -> Iterator[None]:
    """Yields a context in which sizes are chosen for a platform that need not be here.

    Example:
        >>> with planned("tpu"):
        ...     platform()
        'tpu'
    """
    token = _PLANNED.set(name)
    try:
        yield
    finally:
        _PLANNED.reset(token)
