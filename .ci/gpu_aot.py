"""Compiles rounds of Llama-8B's shape ahead of time for an H100, on a machine that has no GPU.

Needs the extra `cuda-aot` (JAX's plugin for CUDA, without NVIDIA's libraries). Fails if a program
does not compile, launches or holds more than the table below says, or copies a large array in
every round. Nothing is run, and no tiles are tuned. With the argument `all` more programs are
compiled, with names of programs those alone.

With JSPEC_ONE_GRAPH=1 it fails where a whole generation is no single graph. Where PTXAS names
NVIDIA's assembler (of the package nvidia-cuda-nvcc), it fails if the kernels of tree attention need
more registers than there are.
"""

import os

# The programs are for the chip below; whatever runs while they are traced runs here.
os.environ["JAX_PLATFORMS"] = "cpu"

import re
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jspec
from jspec import methods, models
from jspec._xla import backend, one_graph
from jspec.costs import devices
from jspec.decoding import engine
from jspec.drafters.draft_head.lyanna_resampling import Fused
from jspec.methods import Built, device_defaults
from jspec.models.attention import Cached, Past, attend
from jspec.models.block_attention import BlockAttention, Triton
from jspec.models.heads.eagle import EAGLEConfig, EAGLEHead
from jspec.models.heads.lyanna import LyannaConfig, LyannaHead
from jspec.models.llama import LlamaConfig
from jspec.planning import compiled, gpu_chips, layout
from jspec.planning.compiled import Compiled
from jspec.planning.setting import Setting
from jspec.round.request import chunk_of, prepare

SLOTS, NEW = 2048, 128
SLACK = 1.05
"""Versions of JAX differ by 2%."""


class Program(NamedTuple):
    """A method's rounds, and the most that one of them may be; see `Launches`.

    Rounds of several widths are counted together, and a back-off. Where rounds are one graph
    nothing is launched and nothing waited for.
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
    function: str = "rounds"
    everywhere: bool = True
    """False: with the argument `all` alone."""


# Figures of JAX 0.10.2 and 0.12.0.1, the larger ones.
PROGRAMS = {
    "plain": Program("plain", 71, 2, 1, 1),
    "plain, sampled": Program("plain", 155, 2, 1, 2, sampled=True),
    "token_recycling": Program("token_recycling", 94, 2, 1, 43),
    # The visit of the root, and the loop of those below it.
    "token_recycling, sampled": Program("token_recycling", 291, 4, 3, 44, sampled=True),
    # A round has one of three widths, or is a back-off in a loop of its own: all four are counted.
    "auto": Program("auto", 749, 4, 2, 34),
    "auto, in back-off": Program("auto in back-off", 119, 2, 1, 1),
    "auto, 63 nodes": Program("auto of 63", 315, 2, 1, 34),
    # Their trees stop growing where it does not pay: a wait a level.
    "eagle2": Program("eagle2", 214, 8, 3, 32),
    "lyanna": Program("lyanna", 314, 14, 5, 11, largest_copy=2),
    "dyspec": Program("dyspec", 261, 9, 3, 10),
    "token_recycling, 8 rows": Program("token_recycling", 168, 3, 1, 340, largest_copy=5, rows=8),
    "Engine.step, 8 rows": Program(
        "token_recycling", 168, 3, 1, 340, largest_copy=5, rows=8, function="step"
    ),
    "prefill": Program("token_recycling", 0, 0, 0, 120, function="prefill"),
    "lookahead": Program("lookahead", 154, 20, 1, 30, everywhere=False),
    "plain, whole": Program("plain", 761, 2, 1, 1, layers=32, everywhere=False),
    "token_recycling, whole": Program(
        "token_recycling", 815, 2, 1, 71, layers=32, everywhere=False
    ),
}


def main(asked: list[str]) -> int:
    chip = gpu_chips.chips("h100", 1)
    mesh = Mesh(np.array(chip).reshape(1, 1), layout.AXES, axis_types=(AxisType.Auto,) * 2)
    names = [name for name in asked if name != "all"] or [
        name for name, program in PROGRAMS.items() if program.everywhere or asked
    ]
    # A device that is not there reads no programs back.
    jax.config.update("jax_enable_compilation_cache", False)
    wrong = [name for name in names if not _keeps(name, _compiled(PROGRAMS[name], mesh))]
    for dtype, layers, options in [
        (jnp.bfloat16, 1, {}),
        (jnp.float32, 4, {"soft_cap": 30.0, "window": 1024}),
    ]:
        if names != asked and not _kernel(mesh, dtype, layers, **options):
            wrong.append("tree attention")
    if wrong:
        print(f"not as the table of .ci/gpu_aot.py says: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _compiled(program: Program, mesh: Mesh) -> Compiled:
    with backend.planned("gpu"):
        target = models.shapes("llama-8b", "bfloat16", num_layers=program.layers)
        built = _built(program.method, target)
        setting = Setting(
            built.model, target.params, built.drafter, built.drafter_params, devices.find("h100"),
            program.rows, SLOTS, NEW,
        )  # fmt: skip
        params, drafter_params = setting.placed(mesh)
        call = _call(setting.model, program)
        given = setting.model, params, setting.drafter, drafter_params
        if program.function == "prefill":
            return compiled.prefill(*given, call, mesh)
        state = compiled.state_of(*given, call, mesh)
        if program.function == "rounds":
            return compiled.rounds(*given, state, mesh)
        until_one_ends = layout.whole(jax.ShapeDtypeStruct((), bool), mesh)
        model, params, drafter, drafter_params = given
        lowered = engine._step.lower(
            model, params, state, drafter, drafter_params, 1, until_one_ends
        )
        return compiled._compile("rounds", lowered, model, mesh)


def _built(method: str, target: models.Loaded) -> Built:
    if method == "plain":
        return Built(target.model, jspec.Autoregressive(), None)
    if method in ("eagle2", "lyanna"):
        kinds = {"eagle2": (EAGLEHead, EAGLEConfig), "lyanna": (LyannaHead, LyannaConfig)}
        of_head, of_config = kinds[method]
        shape = {
            field.name: getattr(target.model.config, field.name) for field in fields(LlamaConfig)
        }
        head = of_head(of_config(**shape), jnp.bfloat16, jnp.bfloat16)
        tokens, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
        states = jnp.zeros((1, 2, head.features))
        weights = jax.eval_shape(head.init, jax.random.key(0), states, tokens, tokens, mask)
        sharp = device_defaults.SHARPNESS
        if method == "eagle2":
            shape = device_defaults.eagle2(None, None, None)
            drafter = jspec.EAGLE2(head, *shape, sharpness=sharp)
        else:
            nodes, second = device_defaults.lyanna(None, None)
            drafter = jspec.Lyanna(head, nodes, resampling=Fused(second), sharpness=sharp)
        return Built(target.model, drafter, weights)
    if method == "dyspec":
        draft = models.shapes("llama-1b", "bfloat16", num_layers=2)
        return methods.build(method, target, draft=draft)
    name, _, part = method.partition(" ")
    built = methods.build(name, target)
    if part == "in back-off":  # the loop of the back-off alone
        backed_off = replace(built.drafter, widths=(0,), drafting=False)
        return built._replace(drafter=backed_off)
    if part:  # and of rounds of the largest width
        widths = built.drafter.widths[-1:]
        return built._replace(drafter=replace(built.drafter, widths=widths, drafting=True))
    return built


def _call(model, program: Program):
    """Shapes of a call of greedy decoding, or of one that draws by top-k and top-p."""
    if not program.sampled:
        return compiled.call_of(model, program.rows, SLOTS, NEW)
    sampling = jspec.Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.0)
    one = prepare(
        model, np.zeros((1, SLOTS - NEW), np.int32), None, NEW, eos=0, sampling=sampling,
        key=jax.random.key(0), capacity=SLOTS,
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
    figures = {"MiB of temporaries": (found.temporaries / 2**20, SLACK * program.temporaries)}
    if launches is not None:
        with backend.planned("gpu"):
            single = one_graph.asked()
        figures |= {
            "kernels": (launches.kernels, int(SLACK * program.kernels)),
            "launched by the host": (
                launches.launched, 0 if single else int(SLACK * program.launched)
            ),
            "waits": (launches.waits, 0 if single else program.waits),
            "MiB of the largest copy": (launches.largest_copy / 2**20, program.largest_copy),
        }  # fmt: skip
    said = ", ".join(
        f"{value:.3g} {what} ({bound:.3g})" for what, (value, bound) in figures.items()
    )
    seconds = f"{found.seconds:.0f} s"
    print(f"{name}, {program.layers} layers, JAX {jax.__version__}, {seconds}: {said}", flush=True)
    return all(value <= bound for value, bound in figures.values())


def _kernel(mesh: Mesh, dtype, layers: int, **options: float) -> bool:
    """Compiles the kernel over 64 nodes and over the past of a layer, or of one that is scanned."""
    rows, nodes, heads, mates, dim = 1, 64, 8, 4, 128
    everywhere = NamedSharding(mesh, PartitionSpec())
    of_nodes, cache = (rows, heads, nodes, dim), (rows, heads * layers, SLOTS, dim)
    shapes = [((rows, nodes, heads * mates, dim), dtype), (of_nodes, dtype), (of_nodes, dtype)]
    shapes += [((rows, nodes, nodes), bool), ((rows, nodes), jnp.int32), (cache, dtype)]
    shapes += [(cache, dtype), ((rows,), jnp.int32), ((), jnp.int32)]
    impl = BlockAttention(nodes=Triton(64, 32), past=Triton(64, 64, num_splits=8))

    def program(q, k, v, mask, positions, keys, values, lengths, layer):
        past = Past(Cached(keys, values, lengths, layer), None)
        return attend(q, k, v, mask, past, positions, **options, impl=impl)

    arguments = map(partial(jax.ShapeDtypeStruct, sharding=everywhere), *zip(*shapes, strict=True))
    # JAX 0.12 asks the mesh for the chip where it lowers Triton's kernels.
    with (
        tempfile.TemporaryDirectory() as folder,
        jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
    ):
        lowered = jax.jit(program).lower(*arguments)
        text = lowered.compile(compiler_options={"xla_dump_to": folder}).as_text()
        spilled = _spilled(Path(folder))
    kernels = text.count("__gpu$xla.gpu.triton")
    said = "spills not looked for" if spilled is None else f"{spilled} bytes spilled"
    print(
        f"tree attention, {jnp.dtype(dtype).name}, {options}: {kernels} kernels, {said}", flush=True
    )
    return kernels == 2 and not spilled


def _spilled(folder: Path) -> int | None:
    """The bytes of registers that are kept in memory for want of room; None: nobody can tell."""
    ptxas = os.environ.get("PTXAS")
    if ptxas is None:
        return None
    total = 0
    for file in folder.glob("*.ptx"):
        run = subprocess.run(
            [ptxas, "-v", "-arch=sm_90a", str(file), "-o", os.devnull],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        total += sum(map(int, re.findall(r"(\d+) bytes spill stores", run.stderr)))
    return total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
