"""Table 5 and Fig. 8 of DySpec (Xiong et al. 2024): the time of tree attention by order of nodes.

As in appendix C.1: one row, 64 heads of 128 dimensions, no tokens before the tree. The kernel is
`jspec.models.block_attention`, "manual" is XLA's attention. Xformers' is not run.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Bool
from rich import box
from rich.table import Table

import jspec
from benchmarks.harness import console, record
from jspec.models.attention import XLA
from jspec.models.block_attention import BlockAttention, Mosaic, Triton, choice

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

KERNELS = {
    "gpu": tuple(BlockAttention(nodes=Triton(tile, 32)) for tile in (32, 64, 128)),
    "tpu": tuple(BlockAttention(nodes=Mosaic(tile, 128)) for tile in (128, 512)),
}
"""By platform; the paper's has tiles of 32 queries and blocks of 32 keys."""

Masks = Mapping[tuple[int, str], Bool[np.ndarray, "N N"]]
"""Of random trees, by number of nodes and order."""


def report(masks: Masks, heads: int, head_dim: int, rows: Path | None) -> None:
    """Times an attention over each mask and prints the table.

    Without an accelerator nothing is run, which the table says.
    """
    platform = jax.default_backend()
    kernels = KERNELS.get(platform, ())
    shown = Table("nodes", "order", "kernel, ms", "XLA, ms", "the paper's", box=box.MARKDOWN)
    for (nodes, order), mask in masks.items():
        theirs = " and ".join(f"{value:g}" for value in PAPER.get((nodes, order), ()))
        cells = ["not run"] * 2
        if kernels:
            timing = choice.measure(_where(heads, head_dim), mask[None], kernels)
            about = dict(bench="dyspec_blocks", trees="random trees", nodes=nodes, order=order)
            about |= dict(heads=heads, head_dim=head_dim)
            record(rows, about | dict(seconds=dict(timing.seconds), errors=dict(timing.errors)))
            slow = timing.seconds[repr(XLA)]
            fast = [taken for name, taken in timing.seconds.items() if name != repr(XLA)]
            cells = [f"{1e3 * min(fast):.4f}" if fast else "failed", f"{1e3 * slow:.4f}"]
        shown.add_row(str(nodes), order, *cells, theirs)
    console.print(shown)
    if not kernels:
        console.print(
            f"Times were not run: on a {platform.upper()} there is no kernel to time, and running "
            "it step by step there would say nothing of it."
        )


def _where(heads: int, head_dim: int) -> choice.AttentionSetting:
    return choice.AttentionSetting(
        heads, heads, head_dim, None, "bfloat16", 1, 0,
        jax.devices()[0].device_kind, jax.__version__, jspec.__version__,
    )  # fmt: skip
