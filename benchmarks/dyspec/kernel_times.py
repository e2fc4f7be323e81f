"""DySpec (Xiong et al. 2024), Table 5, Fig. 8: times of tree attention by order of nodes.

As in appendix C.1: one row, 64 heads of 128 dimensions, no tokens before the tree. The kernel is
`jspec.models.block_attention`, "manual" is XLA's attention. Xformers' is not run.
"""

import math
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jspec.models.attention import XLA, Implementation, Past, attend
from jspec.models.block_attention import BlockAttention, Triton

PAPER = {
    (256, "as grown"): (0.07548, 0.14089),
    (256, "depth first"): (0.05406, 0.14124),
    (512, "as grown"): (0.21317, 0.56264),
    (512, "depth first"): (0.11364, 0.55965),
    (1024, "as grown"): (0.63368, 2.08612),
    (1024, "depth first"): (0.31801, 2.08142),
    (2048, "as grown"): (2.27148, 9.20739),
    (2048, "depth first"): (1.02645, 9.13469),
}
"""Custom kernel and manual attention in Table 5, whose unit the paper does not name."""

KERNELS = tuple(BlockAttention(nodes=Triton(tile, 32)) for tile in (32, 64, 128))
"""For a GPU; the paper's has tiles of 32 queries and blocks of 32 keys."""
CHAIN = 8
"""Attentions of a program that is timed, one after another as the layers of a model."""
REPEATS = 5
MOST_OFF = 2e-2
"""Allowed distance of a kernel from XLA's numbers, in bfloat16."""


def measure(
    mask: Bool[np.ndarray, "N N"], heads: int, head_dim: int, kernels: Sequence[Implementation]
) -> tuple[dict[str, float], dict[str, str]]:
    """Times the kernels and XLA's attention in turn: least seconds of each, or its error.

    What gives other numbers than XLA's attention is an error.
    """
    nodes = len(mask)
    draw = iter(jax.random.split(jax.random.key(0), 3))
    shapes = (1, nodes, heads, head_dim), *[(1, heads, nodes, head_dim)] * 2
    given = [jax.random.normal(next(draw), shape, jnp.bfloat16) for shape in shapes]
    # An argument and not a constant, of which XLA would compute what it can beforehand.
    given.append(jnp.asarray(mask[None]))
    ready = {repr(XLA): _chain(XLA)}
    wanted = np.asarray(ready[repr(XLA)](*given)[0], np.float32)
    errors = {}
    for impl in kernels:
        run = _chain(impl)
        try:
            found = np.asarray(run(*given)[0], np.float32)
        except Exception as error:  # a compiler fails in ways of its own
            said = (str(error).splitlines() or [""])[0]
            errors[repr(impl)] = f"{type(error).__name__}: {said:.200}"
            continue
        off = (np.abs(found - wanted) / (1 + np.abs(wanted))).max()
        if off <= MOST_OFF:
            ready[repr(impl)] = run
        else:
            errors[repr(impl)] = f"it differs from XLA's attention by {off:.2g}"
    least = dict.fromkeys(ready, math.inf)
    for _ in range(REPEATS):
        for name, run in ready.items():
            begin = time.perf_counter()
            jax.block_until_ready(run(*given))
            least[name] = min(least[name], (time.perf_counter() - begin) / CHAIN)
    return least, errors


def _chain(impl: Implementation) -> Callable[..., tuple[Array, Array]]:
    """Returns a program of `CHAIN` attentions, each of the queries that the one before made."""

    @jax.jit
    def run(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, Array]:
        first = last = attend(q, k, v, mask, Past(None, None), impl=impl).reshape(q.shape)
        for _ in range(CHAIN - 1):
            last = attend(last, k, v, mask, Past(None, None), impl=impl).reshape(q.shape)
        return first, last

    return run
