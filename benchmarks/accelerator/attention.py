"""Tree attention by kernel and by XLA: which is faster, by rows, nodes and past."""

import jax

from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale
from jspec.models.attention import XLA
from jspec.models.block_attention import choice

SECTION = "attention"
MORE_SLOTS = 16
"""How many times as many slots as the other sections have the longer past has."""
MANY_NODES = 256


def plan(scale: Scale) -> list[tuple[int, int, int]]:
    """The cells (batch, tokens, slots), those first that say most."""
    capacity = scale.capacity, MORE_SLOTS * scale.capacity
    grid = [(batch, scale.nodes + 1, past) for batch in scale.batches[:2] for past in capacity]
    return [*grid, (1, MANY_NODES, capacity[0]), (1, 1, capacity[1])]


def measure(cells: Cells, scale: Scale) -> None:
    """One row for each batch, number of tokens and number of slots, all of them live."""
    kernels = choice.CANDIDATES.get(jax.default_backend(), ())
    if not kernels:
        cells.skip("the kernels of tree attention run on a GPU or a TPU")
        return
    for batch, tokens, capacity in plan(scale):

        def row(batch: int = batch, tokens: int = tokens, capacity: int = capacity) -> dict:
            where = choice.setting(scale.model, capacity, batch)
            mask = choice.random_mask(tokens)
            timing = choice.measure(where, mask, kernels, scale.repeats)
            return {
                "least": dict(timing.seconds),
                "errors": dict(timing.errors),
                "xla": timing.seconds[repr(XLA)],
                "chosen": repr(choice.choose(timing, kernels)),
            }

        cells.run(row, batch=batch, tokens=tokens, capacity=capacity)
