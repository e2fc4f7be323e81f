"""Counts programs that JAX compiles: while a server answers, there shall be none."""

from collections.abc import Callable
from typing import Any

import jax

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
"""JAX's event for each new program, whether it is compiled or comes from the cache on disk."""


class CompileCounter:
    """Counts from its making on."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        del duration_secs, kwargs
        if event == _LOWERED:
            self.count += 1

    def since(self, before: int) -> Callable[[], int]:
        """Returns what gives the programs since there were `before`."""
        return lambda: self.count - before
