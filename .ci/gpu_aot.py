"""Compiles rounds of Llama-8B's shape ahead of time for an H100, on a machine that has no GPU.

Needs the extra `cuda-aot` (JAX's plugin for CUDA, without NVIDIA's libraries). Fails if a program
does not compile, launches or holds more than the table below says, or copies a large array in
every round. Nothing is run, and no tiles are tuned. With the argument `all` more programs are
compiled, with names of programs those alone.

With the argument `graph` a few are compiled with XLA's options for loops and conditionals in CUDA
graphs; it fails where a whole generation is no single graph.
"""

import os

# The programs are for the chip below; whatever runs while they are traced runs here.
os.environ["JAX_PLATFORMS"] = "cpu"

import sys
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jspec
from jspec import backend, methods, models
from jspec.costs import devices
from jspec.models.attention import Cached, Past, attend
from jspec.models.block_attention import BlockAttention, Triton
from jspec.planning import compiled, gpu_chips, layout
from jspec.planning.compiled import Compiled
from jspec.planning.setting import Setting
from jspec.request import chunk_of, prepare

SLOTS, NEW = 2048, 128
GRAPH = sys.argv[1:] == ["graph"]
ONE_GRAPH = "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL --xla_gpu_graph_min_graph_size=1"
SLACK = 1.05
"""Versions of JAX differ by 2%."""


class Program(NamedTuple):
    """A method's rounds, and the most that one of them may be; see `Launches`.

    With several widths all of them are counted, as if a round ran each.
    """

    method: str
    kernels: int
    launched: int
    waits: int
    temporaries: int
    """MiB."""
    largest_copy: int = 1
    """MiB."""
    sampled: bool = False
    rows: int = 1
    layers: int = 2
    everywhere: bool = True
    """False: with the argument `all` alone."""


# Figures of JAX 0.10.2 and 0.12.0.1, the larger ones.
PROGRAMS = {
    "plain": Program("plain", 95, 4, 3, 2),
    "plain, sampled": Program("plain", 168, 4, 3, 3, sampled=True),
    "token_recycling": Program("token_recycling", 126, 4, 3, 57),
    "token_recycling, sampled": Program("token_recycling", 199, 4, 3, 57, sampled=True),
    "auto": Program("auto", 973, 23, 16, 45),
    "token_recycling, 8 rows": Program(
        "token_recycling", 147, 12, 7, 340, largest_copy=5, rows=8, everywhere=False
    ),
    "lookahead": Program("lookahead", 192, 18, 3, 40, everywhere=False),
    "plain, whole": Program("plain", 786, 4, 3, 2, layers=32, everywhere=False),
    "token_recycling, whole": Program(
        "token_recycling", 847, 4, 3, 284, layers=32, everywhere=False
    ),
}


def main(asked: list[str]) -> int:
    if GRAPH:  # read when XLA starts, which it does below
        os.environ["XLA_FLAGS"] = ONE_GRAPH
    chip = gpu_chips.chips("h100", 1)
    mesh = Mesh(np.array(chip).reshape(1, 1), layout.AXES, axis_types=(AxisType.Auto,) * 2)
    names = [name for name in asked if name not in ("all", "graph")] or [
        name for name, program in PROGRAMS.items() if program.everywhere or asked == ["all"]
    ]
    # A device that is not there reads no programs back.
    jax.config.update("jax_enable_compilation_cache", False)
    wrong = [name for name in names if not _keeps(name, _rounds(PROGRAMS[name], mesh))]
    kernels = not GRAPH and names != asked
    for dtype, layers, options in [
        (jnp.bfloat16, 1, {}),
        (jnp.float32, 4, {"soft_cap": 30.0, "window": 1024}),
    ]:
        if kernels and not _kernel(mesh, dtype, layers, **options):
            wrong.append("tree attention")
    if wrong:
        print(f"not as the table of .ci/gpu_aot.py says: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _rounds(program: Program, mesh: Mesh) -> Compiled:
    with backend.planned("gpu"):
        target = models.shapes("llama-8b", "bfloat16", num_layers=program.layers)
        built = methods.Built(target.model, jspec.Autoregressive(), None)
        if program.method != "plain":
            built = methods.build(program.method, target)
        setting = Setting(
            built.model, target.params, built.drafter, built.drafter_params, devices.find("h100"),
            program.rows, SLOTS, NEW,
        )  # fmt: skip
        params, drafter_params = setting.placed(mesh)
        call = _call(setting.model, program)
        given = setting.model, params, setting.drafter, drafter_params
        return compiled.rounds(*given, compiled.state_of(*given, call, mesh), mesh)


def _call(model, program: Program):
    """Shapes of a call of greedy decoding, or of one that draws by top-k and top-p."""
    if not program.sampled:
        return compiled.call_of(model, program.rows, SLOTS, NEW)
    sampling = jspec.Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.0)
    one = prepare(
        model, np.zeros((1, SLOTS - NEW), np.int32), None, NEW, None, sampling, 0,
        jax.random.key(0), None, slots=SLOTS,
    )  # fmt: skip

    def of_rows(leaf):
        shape = (program.rows, *leaf.shape[1:]) if leaf.ndim else ()
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    return one._replace(
        arrays=jax.tree.map(of_rows, one.arrays), chunk=chunk_of(program.rows, SLOTS)
    )


def _keeps(name: str, found: Compiled) -> bool:
    """Prints the figures beside the table's; False if one is larger, or an array is copied."""
    program, launches = PROGRAMS[name], found.launches
    figures = {
        "kernels": (launches.kernels, int(SLACK * program.kernels)),
        "launched by the host": (launches.launched, 0 if GRAPH else int(SLACK * program.launched)),
        "waits": (launches.waits, 0 if GRAPH else program.waits),
        "MiB of temporaries": (found.temporaries / 2**20, SLACK * program.temporaries),
        "MiB of the largest copy": (launches.largest_copy / 2**20, program.largest_copy),
    }
    said = ", ".join(
        f"{value:.3g} {what} ({bound:.3g})" for what, (value, bound) in figures.items()
    )
    print(f"{name}, {program.layers} layers, JAX {jax.__version__}: {said}", flush=True)
    return all(value <= bound for value, bound in figures.values())


def _kernel(mesh: Mesh, dtype, layers: int, **options: float) -> bool:
    """Compiles the kernel over 64 nodes and over the past of a layer, or of one that is scanned."""
    rows, nodes, heads, mates, dim = 1, 64, 8, 4, 128
    everywhere = NamedSharding(mesh, PartitionSpec())
    of_nodes, cache = (rows, heads, nodes, dim), (rows, heads * layers, SLOTS, dim)
    shapes = [((rows, nodes, heads * mates, dim), dtype), (of_nodes, dtype), (of_nodes, dtype)]
    shapes += [((rows, nodes, nodes), bool), ((rows, nodes), jnp.int32), (cache, dtype)]
    shapes += [(cache, dtype), ((rows,), jnp.int32), ((), jnp.int32)]
    by = BlockAttention(nodes=Triton(64, 32), past=Triton(64, 64, pieces=8))

    def program(q, k, v, mask, positions, keys, values, lengths, layer):
        past = Past(Cached(keys, values, lengths, layer), None)
        return attend(q, k, v, mask, past, positions, **options, by=by)

    arguments = map(partial(jax.ShapeDtypeStruct, sharding=everywhere), *zip(*shapes, strict=True))
    # JAX 0.12 asks the mesh for the chip where it lowers Triton's kernels.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        text = jax.jit(program).lower(*arguments).compile().as_text()
    kernels = text.count("__gpu$xla.gpu.triton")
    print(f"tree attention, {jnp.dtype(dtype).name}, {options}: {kernels} kernels", flush=True)
    return kernels == 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
