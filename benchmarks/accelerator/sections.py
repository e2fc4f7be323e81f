"""The sections by name, and the groups of them that share a process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from benchmarks.accelerator import (
    attention,
    bits,
    devices,
    first,
    forwards,
    loops,
    methods,
    overhead,
    parity,
    rounds,
    shapes,
)
from benchmarks.accelerator.cells import Cells, fingerprint, mend
from benchmarks.harness import console, headline
from benchmarks.ledger import Ledger

SECTIONS = {
    "device": 10,
    "first": 170,
    "forwards": 90,
    "rounds": 90,
    "methods": 80,
    "parity": 35,
    "overhead": 40,
    "loops": 15,
    "attention": 40,
    "bits": 20,
}
"""About how many seconds each takes on an accelerator: its share of the time."""

MEASURES: dict[str, Callable[[Cells, shapes.Scale], None]] = {
    module.SECTION: module.measure
    for module in (
        devices,
        first,
        forwards,
        rounds,
        methods,
        parity,
        overhead,
        loops,
        attention,
        bits,
    )
}

COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="
VARIANTS = {
    "": "",
    "no command buffers": COMMAND_BUFFERS,
    "loops in command buffers": f"{COMMAND_BUFFERS}FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,"
    "CONDITIONAL,WHILE,DYNAMIC_SLICE_FUSION --xla_gpu_graph_min_graph_size=1",
}
"""Settings of XLA for CUDA by name, as flags; each needs a process of its own."""


@dataclass(frozen=True)
class Group:
    """Sections that run in one process, with one setting of XLA."""

    sections: tuple[str, ...]
    variant: str = ""

    @property
    def name(self) -> str:
        return ", ".join(self.sections) + (f" ({self.variant})" if self.variant else "")

    @property
    def file(self) -> str:
        """The name of the file of what XLA tuned for it."""
        return "-".join(f"{self.sections[0]} {self.variant}".split()) + ".pbtxt"

    @property
    def seconds(self) -> float:
        return sum(SECTIONS[name] for name in self.sections)


GROUPS = (
    Group(("device", "first", "forwards", "rounds")),
    Group(("methods", "parity")),
    Group(("overhead", "loops")),
    Group(("attention", "bits")),
    *(Group(("loops",), variant) for variant in VARIANTS if variant),
)
"""In the order in which they run. The model's weights are made once, in the first."""


def on_cuda(rows: Path) -> bool:
    """Whether the rows are of a CUDA device; asked of the file, since asking JAX would take it."""
    found = [row for row in Ledger(rows).rows if "platform" in row]
    return bool(found) and found[-1]["platform"] == "gpu"


def run(
    names: Sequence[str],
    rows: Path,
    budget_seconds: float,
    scale: shapes.Scale,
    variant: str,
) -> list[str]:
    """Runs sections in this process, and returns what there was no time for."""
    ends = time.monotonic() + budget_seconds
    mend(rows)
    ledger, device = Ledger(rows), jax.local_devices()[0]
    headline(f"{', '.join(names)}: {scale.name} in {scale.dtype}{variant and ', ' + variant}")
    about = {
        "bench": "accelerator",
        "kind": device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "sources": fingerprint(),
        "scale": scale.name,
        "variant": variant,
    }
    left = []
    for index, name in enumerate(names):
        waiting = sum(SECTIONS[other] for other in names[index:])
        share = max(ends - time.monotonic(), 0) * SECTIONS[name] / waiting
        cells = Cells(ledger, about | {"section": name}, time.monotonic() + share)
        try:
            MEASURES[name](cells, scale)
        except Exception as error:  # what fails outside of a cell costs its section only
            console.print(f"{name}: {type(error).__name__}: {error}")
            left.append(name)
        if cells.left:
            console.print(f"{name}: no time was left for {'; '.join(cells.left)}")
        left += cells.left
    return left
