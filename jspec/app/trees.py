"""Trees for Token Recycling that fit the machine."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jspec.tree import Template

_CPU_NODES = 7
"""With the root 8 tokens a forward: of 4, 6, 8, 12, 16 and 24, the best or next to it on a CPU with
the bundled model. A larger model would gain from more, as its forwards cost less beside one."""


def recycling(nodes: int | None = None, k: int | None = None) -> "Template":
    """The best tree for this device.

    Args:
        nodes: drafted ones; None: what the default device scores cheaply. An accelerator scores the
            published 81 tokens in the time of one, a CPU takes many times as long.
        k: candidates that the matrix holds; None is the published 8.
    """
    import jax

    from jspec.drafters.token_recycling import PUBLISHED, fitted

    on_cpu = jax.default_backend() == "cpu"
    if nodes is None and k is None and not on_cpu:
        return PUBLISHED
    return fitted(nodes or (_CPU_NODES if on_cpu else 80), k or 8)
