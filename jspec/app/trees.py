"""Trees for Token Recycling that fit the machine."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jspec.tree import Template

_ACCEPTED = (0.45, 0.10, 0.06, 0.045, 0.03, 0.025, 0.022, 0.02)
"""How often a child of each rank is right where its parent was: 40 stories by a model of 260,000
parameters, warm matrix."""

_CPU_NODES = 15
"""With the root 16 tokens a forward, which a CPU scores in little more time than one."""


def recycling(nodes: int | None = None, k: int | None = None) -> "Template":
    """The best tree for this device.

    Args:
        nodes: drafted ones; None: what the default device scores cheaply. An accelerator scores the
            published 81 tokens in the time of one, a CPU takes 4 times as long.
        k: candidates that the matrix holds; None is the published 8.
    """
    import jax

    from jspec import tree
    from jspec.drafters.token_recycling import PUBLISHED

    on_cpu = jax.default_backend() == "cpu"
    if nodes is None and k is None and not on_cpu:
        return PUBLISHED
    return tree.likeliest(_ACCEPTED[:k], 1 + (nodes or (_CPU_NODES if on_cpu else 80)))
