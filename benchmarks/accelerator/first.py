"""What decides most, before all else: one CUDA graph or not, and a round of every width.

Beside each row the report has what was predicted of the program without a GPU, see `ahead`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax

import jspec
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.rounds import Loop, about, per_round
from benchmarks.accelerator.shapes import Scale
from jspec import methods
from jspec.costs import CostCurve
from jspec.costs.measuring import set_backoff
from jspec.drafters.adaptive import Adaptive, AdaptiveParams
from jspec.methods import Built
from jspec.models import Loaded
from jspec.types import PyTree

SECTION = "first"
PLAIN, REST = "plain", "rest"
ONE_GRAPH: Mapping[str, Any] = {
    "xla_gpu_graph_min_graph_size": 1,
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,"
    "DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
}
"""Options of the compiler with which a whole generation is one CUDA graph."""
_OUT_OF_REACH = 1e6
"""Seconds of a width that is not to be chosen."""


def plan(scale: Scale, on_cuda: bool) -> list[tuple[str, int, bool]]:
    """The cells (method, batch, one graph), those first that say most."""
    one, *others = scale.round_batches
    graphs = (False, True) if on_cuda else (False,)
    first = [(name, one, graph) for name in scale.first for graph in graphs]
    return first + [(name, batch, False) for batch in others for name in scale.first]


def built(name: str, target: Loaded) -> Built:
    """The drafter of a method, for a target that may be shapes alone."""
    if name == PLAIN:
        return Built(target.model, jspec.Autoregressive(), None)
    return methods.build(name, target)


def widths(drafter: Any, state: Any) -> dict[str, int]:
    """The drafted nodes of each kind of round that a drafter has, by its name in rows.

    Args:
        drafter: of a method.
        state: of a generation, whose shapes are enough.
    """
    if isinstance(drafter, Adaptive):
        drafts = {f"{width} nodes": width for width, _ in drafter.sizes(state.root)}
        return {REST: 0, **drafts}
    (width,) = state.stats.widths
    return {f"{width} nodes" if width else PLAIN: width}


def measure(cells: Cells, scale: Scale) -> None:
    """One row for each method, batch, and way to launch."""
    target = Loaded(model=scale.model, params=scale.params, tokenizer=None, eos=(), bos=None)
    for name, batch, graph in plan(scale, jax.default_backend() == "gpu"):

        def row(name: str = name, batch: int = batch, graph: bool = graph) -> dict:
            return _row(target, built(name, target), batch, scale, ONE_GRAPH if graph else None)

        cells.run(row, method=name, batch=batch, one_graph=graph)


def _row(
    target: Loaded, method: Built, batch: int, scale: Scale, options: Mapping[str, Any] | None
) -> dict:
    params, drafter = method.drafter_params, method.drafter
    loop = Loop(target.model, target.params, drafter, params, batch, scale, options)
    seconds = {}
    for kind, width in widths(drafter, loop.state).items():
        if isinstance(drafter, Adaptive):
            params = _only(params, drafter, loop.state, width)
            loop.state = set_backoff(loop.state, kind == REST)
        seconds[kind] = per_round({kind: (loop, params)}, scale)[kind]["seconds"]
    launched = loop.program.rounds
    return {
        **about(loop),
        "kinds": seconds,
        "launched": None if launched is None else asdict(launched),
    }


def _only(params: PyTree, drafter: Adaptive, state: Any, width: int) -> AdaptiveParams:
    """The drafter's params with a curve by which every round has one width."""
    sizes = drafter.sizes(state.root)
    curve = {tokens: 1.0 if size == width else _OUT_OF_REACH for size, tokens in sizes}
    return AdaptiveParams(params.drafter, CostCurve.of(curve))
