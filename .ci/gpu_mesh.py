"""Compiles rounds of Llama-8B's shape ahead of time for eight H100s, and for two hosts of eight.

Needs the extra `cuda-aot`. Fails where a program does not compile, where devices exchange more in a
round than the table below says, or where one of these exchanges is larger than the scores of one
token for each node that is verified. Nothing is run.

With the argument `graph` one program is compiled with XLA's options for loops, conditionals and
exchanges in CUDA graphs; it fails where a whole generation is no single graph.
"""

import os

# The programs are for the chips below; whatever runs while they are traced runs here.
os.environ["JAX_PLATFORMS"] = "cpu"

import sys
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

import jspec
from jspec import methods, models
from jspec._xla import backend
from jspec.costs import devices
from jspec.planning import compiled, gpu_chips, layout
from jspec.planning.setting import Setting

SLOTS, NEW, LAYERS = 2048, 128, 2
GRAPH = sys.argv[1:] == ["graph"]
ONE_GRAPH = (
    "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL,+COLLECTIVES "
    "--xla_gpu_graph_min_graph_size=1"
)


class Program(NamedTuple):
    """A method's rounds, and the most that they may exchange; see `Launches`."""

    method: str
    hosts: int
    rows: int
    exchanges: int
    """Of a round, two for each layer among them."""
    kilobytes: int
    """Of their results."""


# Weights are split over the devices of a host, rows over hosts. The larger figures of JAX 0.10.2
# and 0.12.0.1, and 4% more.
PROGRAMS = {
    "plain": Program("plain", 1, 1, 9, 52),
    "token_recycling": Program("token_recycling", 1, 1, 10, 3500),
    "token_recycling, 8 rows": Program("token_recycling", 1, 8, 10, 28_000),
    "plain, two hosts": Program("plain", 2, 2, 11, 43),
    "token_recycling, two hosts": Program("token_recycling", 2, 2, 14, 4000),
}


def main(asked: list[str]) -> int:
    if GRAPH:  # read when XLA starts, which it does below
        os.environ["XLA_FLAGS"], asked = ONE_GRAPH, ["token_recycling"]
    # A device that is not there reads no programs back.
    jax.config.update("jax_enable_compilation_cache", False)
    wrong = [name for name in asked or PROGRAMS if not _keeps(name)]
    if wrong:
        print(f"not as the table of .ci/gpu_mesh.py says: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _keeps(name: str) -> bool:
    """Prints what is exchanged beside the table's figures; False if it is more."""
    program = PROGRAMS[name]
    chips = np.array(gpu_chips.chips("h100", 8, program.hosts)).reshape(program.hosts, 8)
    mesh = Mesh(chips, layout.AXES, axis_types=(AxisType.Auto,) * 2)
    with backend.planned("gpu"):
        target = models.shapes("llama-8b", "bfloat16", num_layers=LAYERS)
        built = methods.Built(target.model, jspec.Autoregressive(), None)
        if program.method != "plain":
            built = methods.build(program.method, target)
        setting = Setting(
            built.model, target.params, built.drafter, built.drafter_params, devices.find("h100"),
            program.rows, SLOTS, NEW, program.hosts, 8,
        )  # fmt: skip
        params, drafter_params = setting.placed(mesh)
        call = compiled.call_of(setting.model, setting.rows, SLOTS, NEW)
        given = setting.model, params, setting.drafter, drafter_params
        state = compiled.state_of(*given, call, mesh)
        found = compiled.rounds(*given, state, mesh)
    (width,) = state.stats.widths
    launches = found.launches
    assert launches is not None, "rounds for GPUs have launches"
    nodes = program.rows // program.hosts * (1 + width)
    scores = 4 * nodes * setting.model.vocab_size
    figures = {
        "exchanges": (launches.exchanges, program.exchanges),
        "kB": (launches.exchanged / 1e3, program.kilobytes),
        "kB the largest": (launches.largest_exchange / 1e3, scores / 1e3),
    }
    if GRAPH:
        figures["launched by the host"] = launches.launched, 0
        figures["waits"] = launches.waits, 0
    said = ", ".join(f"{value:.4g} {what} ({most:.4g})" for what, (value, most) in figures.items())
    print(
        f"{name}, {LAYERS} layers, {program.hosts} x 8 H100, JAX {jax.__version__}: {said}; "
        f"{launches.beside} beside other work",
        flush=True,
    )
    return all(value <= most for value, most in figures.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
