"""Rounds as one CUDA graph, which the host launches once without waiting.

XLA gathers kernels in CUDA graphs, which by default end at conditionals and at loops: in every
round the host waits for the device to say whether there is another one. With two options of the
compiler the loop is part of the graph, with everything in it.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer

from jspec._validate.errors import InputError
from jspec._xla import backend

SWITCH = "JSPEC_ONE_GRAPH"
"""The variable of the environment that switches the options on, 1, or off, 0."""

OPTIONS = {
    # What XLA gathers by default, and loops, conditionals and what devices exchange. It takes loops
    # and conditionals out again where driver and runtime are older than CUDA 12.3.
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE,COLLECTIVES"
    ),
    # A program whose rounds are a loop has two steps, of which none would be worth a graph.
    "xla_gpu_graph_min_graph_size": 1,
}
"""Of XLA's compiler."""


def asked() -> bool:
    """Returns whether rounds become one CUDA graph: if switched on, on NVIDIA GPUs.

    They are not by default: no GPU has run it here. What it saves is small where a round waits once
    or a few times, and when XLA's own graphs of loops were wrong, they took another branch or ended
    the process. `benchmarks.accelerator` measures either.

    Example:
        >>> asked()
        False
    """
    value = os.environ.get(SWITCH, "") or "0"
    if value not in ("0", "1"):
        raise InputError(f"{SWITCH} is {value[:40]!r}; it may be 0 or 1")
    if value == "0" or backend.platform() != "gpu":
        return False
    # AMD's are GPUs too, on which such graphs have crashed. Of a chip that is planned for, only
    # the plugin's name would tell; there is none for AMD's.
    return "rocm" not in jax.devices()[0].client.platform_version.lower()


class Jitted:
    """A jitted function, compiled with `OPTIONS` where that is `asked`.

    The platform that it is made for is found here, in Python, before anything is traced: a static
    argument of the function, so that a program of one platform is never taken for another's.

    Example:
        >>> double = Jitted(lambda x, platform: 2 * x)
        >>> int(double(4))
        8
    """

    def __init__(
        self, function: Callable[..., Any], static_argnames: Sequence[str] = (), **options: Any
    ):
        functools.update_wrapper(self, function)
        options["static_argnames"] = (*static_argnames, "platform")
        self._as_it_is: Any = jax.jit(function, **options)
        self._in_one_graph: Any = jax.jit(function, compiler_options=OPTIONS, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {"platform": backend.platform()} | kwargs
        return self._chosen((args, given))(*args, **given)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers the function for these arguments, or for their shapes."""
        given = {"platform": backend.platform()} | kwargs
        return self._chosen((args, given)).lower(*args, **given)

    def _cache_size(self) -> int:
        return self._as_it_is._cache_size() + self._in_one_graph._cache_size()

    def _chosen(self, given: Any) -> Any:
        if not asked():
            return self._as_it_is
        # JAX takes options for the outermost program alone.
        inside = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(given))
        return self._as_it_is if inside else self._in_one_graph
