"""Compiles programs ahead of time for GPUs and TPUs, on a machine that has none.

    python .ci/ahead.py gpu          # in an environment with the extra `cuda-aot`
    python .ci/ahead.py tpu          # in one with the extra `tpu`

These are the programs of a landing; with JSPEC_CI=all every one, and with names behind it those
alone. Nothing is run, and no tiles are tuned. Fails if a program does not compile, or is more than
the table says. Where PTXAS names NVIDIA's assembler (of the package nvidia-cuda-nvcc), the kernels
of tree attention must need no more registers than there are.
"""

import os

# The programs are for other chips; whatever runs while they are traced runs here.
os.environ["JAX_PLATFORMS"] = "cpu"

import re
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jspec
from jspec import models
from jspec._xla import backend
from jspec.drafters.draft_head.lyanna_resampling import Fused
from jspec.methods import LLM, device_defaults
from jspec.models import Llama, LlamaConfig
from jspec.models.attention import Cached, Past, attend
from jspec.models.block_attention import BlockAttention, Triton
from jspec.models.heads.eagle import EAGLEConfig, EAGLEHead
from jspec.models.heads.lyanna import LyannaConfig, LyannaHead
from jspec.planning import Programs, Topology, gpu_chips, layout

SAMPLING = jspec.Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.0)
SLOTS = 2048
# A layer's keys are larger than the 128 MiB of vector memory of a core, where XLA would keep
# smaller ones, and count differently. All keys and values are 2,048 MiB for 4 rows.
TPU_SLOTS = 65536
TPU_MODEL = Llama(
    LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=1024, num_layers=4, num_heads=4,
        num_kv_heads=4, head_dim=128, context=TPU_SLOTS,
    ),
    dtype=jnp.bfloat16,
    param_dtype=jnp.bfloat16,
)  # fmt: skip


class Program(NamedTuple):
    """A method's program, and the most that each figure may be.

    Rounds of several widths are counted together, and a back-off.
    """

    chips: str
    method: str
    most: dict[str, float]
    rows: int = 1
    sampled: bool = False
    function: str = "rounds"
    layers: int = 2
    hosts: int = 1
    landing: bool = False


def one(method: str, kernels: int, launched: int, waits: int, held: float, **more: Any) -> Program:
    """Returns a program for one H100, with its kernels and copies, MiB of temporaries and so on."""
    copied = more.pop("copied", 1)
    names = "kernels", "launched by the host", "waits", "MiB of temporaries", "MiB copied at once"
    most = dict(zip(names, (kernels, launched, waits, held, copied), strict=True))
    return Program("h100:1", method, most, **more)


def host(method: str, exchanges: int, kilobytes: int, **more: Any) -> Program:
    """Returns a program for hosts of eight H100s: weights are split over a host, rows over
    hosts.
    """
    return Program("h100:8", method, {"exchanges": exchanges, "kB of them": kilobytes}, **more)


def tpu(method: str, held: int, chips: str = "v5e:1x1", **more: Any) -> Program:
    return Program(chips, method, {"MiB of temporaries": held}, **more)


# 5% more than the larger figures of JAX 0.10.2 and 0.12.0.1; for hosts 4%. A TPU may hold a quarter
# of the cache and 16 MiB, and the cache once where the program makes it.
EIGHT = dict(rows=8, copied=5)
PROGRAMS = {
    "plain": one("plain", 63, 2, 1, 1.1),
    "plain, one shape": one("plain in one shape", 84, 2, 1, 8.5),
    "plain, one shape, kernel": one("plain in one shape by the kernel", 73, 2, 1, 8.5),
    "plain, sampled": one("plain", 148, 2, 1, 2.6, sampled=True),
    "token_recycling": one("token_recycling", 89, 2, 1, 35.1),
    # The visit of the root, and the loop of those below it.
    "token_recycling, sampled": one("token_recycling", 281, 4, 3, 35.1, sampled=True),
    # A round has one of three widths, or is a back-off in a loop of its own: all four are counted.
    "auto": one("auto", 393, 4, 2, 35.3, landing=True),
    "auto, in back-off": one("auto in back-off", 83, 2, 1, 1.55),
    "auto, 63 nodes": one("auto of 63", 114, 2, 1, 35.3),
    # Their trees stop growing where it does not pay: a wait a level.
    "eagle2": one("eagle2", 216, 8, 3, 32.9),
    "lyanna": one("lyanna", 323, 14, 5, 11.45, copied=2),
    "dyspec": one("dyspec", 266, 9, 3, 9.6),
    "lookahead": one("lookahead", 152, 21, 1, 30.7),
    "token_recycling, 8 rows": one("token_recycling", 132, 3, 1, 282, **EIGHT),
    "Engine.step, 8 rows": one(
        "token_recycling", 132, 3, 1, 282, function="step", landing=True, **EIGHT
    ),
    "prefill": Program(
        "h100:1", "token_recycling", {"MiB of temporaries": 126}, function="prefill"
    ),
    "plain, whole": one("plain", 598, 2, 1, 1.1, layers=32),
    "token_recycling, whole": one("token_recycling", 689, 2, 1, 35.6, layers=32),
    "plain, a host": host("plain", 8, 85),
    "token_recycling, a host": host("token_recycling", 9, 2770),
    "token_recycling, a host, 8 rows": host("token_recycling", 10, 22_100, rows=8),
    "plain, two hosts": host("plain", 9, 43, rows=2, hosts=2),
    "token_recycling, two hosts": host(
        "token_recycling", 12, 3310, rows=2, hosts=2, landing=True
    ),
    "tpu, plain": tpu("plain", 2576, rows=4, function="decode"),
    "tpu, token_recycling": tpu("token_recycling", 2576, rows=4, function="decode"),
    "tpu, four chips, sampled": tpu(
        "token_recycling", 2576, "v5e:2x2", rows=16, sampled=True, function="decode", landing=True
    ),
    "tpu, tree of a draft model": tpu(
        "coupled_tree", 2576, rows=4, sampled=True, function="decode"
    ),
    "tpu, Engine.step": tpu("token_recycling", 528, rows=4, function="step", landing=True),
}  # fmt: skip


def main(kind: str, asked: list[str]) -> int:
    # A device that is not there reads no programs back.
    jax.config.update("jax_enable_compilation_cache", False)
    everything = os.environ.get("JSPEC_CI") == "all"
    names = asked or [
        name
        for name, program in PROGRAMS.items()
        if (everything or program.landing) and program.chips.startswith("v") == (kind == "tpu")
    ]
    wrong = [name for name in names if not _keeps(name)]
    if kind == "gpu" and not asked:
        blocks = BlockAttention(nodes=Triton(64, 32), past=Triton(64, 64, num_splits=8))
        cases: list[Any] = [(jnp.bfloat16, 1, {}, blocks, 2)]
        if everything:
            cases.append((jnp.float32, 4, {"soft_cap": 30.0, "window": 1024}, blocks, 2))
            in_order = models.BatchInvariant(64, 15, Triton(64, 64, num_splits=8))
            cases.append((jnp.bfloat16, 1, {}, in_order, 1))
        wrong += [f"tree attention, {dtype}" for dtype, *rest in cases if not _kernel(dtype, *rest)]
    if wrong:
        print(f"not as the table of .ci/ahead.py says: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _keeps(name: str) -> bool:
    """Prints a program's figures, each with the most that it may be; False if one is more."""
    program = PROGRAMS[name]
    programs = _programs(program)
    # Traced with the sizes of a CPU, by which its bound was set: the cache once, 2,048 MiB, and in
    # float32 the scores of 32 tokens of each prompt and their exponentials, 128 MiB each. A TPU
    # would read all 127 at once, of 508 MiB each: 3,203 MiB for plain decoding, 3,366 with a draft
    # model's tree. No cache is held twice there either.
    found = _decode(programs) if program.function == "decode" else None
    found = found or getattr(programs, program.function)()
    figures, most = {"MiB of temporaries": found.temporaries / 2**20}, dict(program.most)
    if (launches := found.launches) is not None:
        figures |= {
            "kernels": launches.kernels,
            "launched by the host": launches.launched,
            "waits": launches.waits,
            "MiB copied at once": launches.largest_copy / 2**20,
            "exchanges": launches.exchanges,
            "kB of them": launches.exchanged / 1e3,
            "kB of the largest": launches.largest_exchange / 1e3,
        }
        if "exchanges" in most:  # none is larger than the scores of a token for each node
            nodes = program.rows // program.hosts * (1 + programs.state.stats.widths[-1])
            most["kB of the largest"] = 4 * nodes * programs.model.vocab_size / 1e3
    said = ", ".join(f"{figures[what]:.4g} {what} ({bound:.4g})" for what, bound in most.items())
    print(f"{name}, JAX {jax.__version__}, {found.seconds:.0f} s: {said}", flush=True)
    return all(figures[what] <= bound for what, bound in most.items())


def _programs(program: Program) -> Programs:
    topology = Topology.of(program.chips)
    mesh = topology.mesh(1, topology.num_devices)
    if program.chips == "v5e:2x2":  # rows alone are split
        mesh = Mesh(mesh.devices.reshape(4), ("data",), axis_types=(AxisType.Auto,))
    if program.hosts > 1:
        chips = np.array(gpu_chips.chips("h100", 8, program.hosts)).reshape(program.hosts, 8)
        mesh = Mesh(chips, layout.AXES, axis_types=(AxisType.Auto,) * 2)
    on_tpu = program.chips.startswith("v")
    with backend.plan_for("tpu" if on_tpu else "gpu"):
        if on_tpu:
            target = models.Loaded(TPU_MODEL, _weights(TPU_MODEL), None, (), None)
        else:
            target = models.shapes("llama-8b", "bfloat16", num_layers=program.layers)
        built = _built(program.method, target)
    slots = TPU_SLOTS if on_tpu else SLOTS
    return Programs(
        built.model, target.params, built.drafter, built.drafter_params, mesh, program.rows, slots,
        slots - 128 if on_tpu else 128, SAMPLING if program.sampled else None,
        built.policy, built.policy_params,
    )  # fmt: skip


def _weights(model: Any) -> Any:
    nodes = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    return jax.eval_shape(model.init, jax.random.key(0), *nodes)


def _built(method: str, target: models.Loaded) -> LLM:
    model = target.model
    if method == "plain":
        return LLM(target, drafter=jspec.Autoregressive())
    if method.startswith("plain in one shape"):
        kernel = Triton(64, 64, num_splits=8) if method.endswith("kernel") else None
        impl = models.BatchInvariant(16, kernel=kernel)
        invariant = model.clone(attention_impl=impl)
        return LLM(replace(target, model=invariant), drafter=jspec.Autoregressive())
    if method == "coupled_tree":
        small = replace(model.config, num_layers=1, num_heads=1, num_kv_heads=1)
        draft = model.clone(config=small)
        drafter = jspec.CoupledTree(draft, num_speculative_tokens=16)
        return LLM(target, drafter=drafter, drafter_params=_weights(draft))
    if model is TPU_MODEL:
        return LLM(target, drafter=jspec.TokenRecycling(model.vocab_size))
    if method in ("eagle2", "lyanna"):
        kinds = {"eagle2": (EAGLEHead, EAGLEConfig), "lyanna": (LyannaHead, LyannaConfig)}
        of_head, of_config = kinds[method]
        shape = {field.name: getattr(model.config, field.name) for field in fields(LlamaConfig)}
        head = of_head(of_config(**shape), jnp.bfloat16, jnp.bfloat16)
        tokens, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
        states = jnp.zeros((1, 2, head.features))
        weights = jax.eval_shape(head.init, jax.random.key(0), states, tokens, tokens, mask)
        sharp = device_defaults.SHARPNESS
        if method == "eagle2":
            sizes = device_defaults.eagle2(None, None, None)
            drafter = jspec.EAGLE2(head, *sizes, sharpness=sharp)
        else:
            nodes, second = device_defaults.lyanna(None, None)
            drafter = jspec.Lyanna(head, nodes, resampling=Fused(second), sharpness=sharp)
        return LLM(target, drafter=drafter, drafter_params=weights)
    if method == "dyspec":
        draft = models.shapes("llama-1b", "bfloat16", num_layers=2)
        return LLM(target, method, draft=draft)
    name, _, part = method.partition(" ")
    built = LLM(target, name)
    if part == "in back-off":  # the loop of the back-off alone
        return LLM(target, name, policy=jspec.FixedWidth(0))
    if part:  # and of rounds of the largest width
        return LLM(target, name, policy=jspec.Adaptive(built.policy.widths[-1:]))
    return built


def _decode(programs: Programs):
    """Compiles a whole call of `jspec.decode`, which makes its cache and so holds one."""
    model, drafter, mesh = programs.model, programs.drafter, programs.mesh
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def shaped(sharding, shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    of_row = partial(shaped, rows, (programs.rows,))
    sampling = key = None
    if programs.sampling is not None:
        sampling = jspec.Sampling(
            temperature=of_row(jnp.float32), top_k=of_row(jnp.int32), top_p=of_row(jnp.float32),
            min_p=of_row(jnp.float32),
        )  # fmt: skip
        kind = jax.eval_shape(lambda: jax.random.key(0))
        key = shaped(everywhere, kind.shape, kind.dtype)

    def program(params, drafter_params, policy_params, prompt, lengths, sampling, key):
        return jspec.decode(
            model, params, prompt, lengths, drafter=drafter, drafter_params=drafter_params,
            policy=programs.policy, policy_params=policy_params,
            max_new_tokens=programs.max_new_tokens, sampling=sampling, key=key,
            stopping=jspec.Stopping(eos=2),
        )  # fmt: skip

    size = programs.capacity - programs.max_new_tokens
    prompt = shaped(rows, (programs.rows, size), jnp.int32)
    weights = programs.params, programs.drafter_params, programs.policy_params
    lowered = jax.jit(program).lower(*weights, prompt, of_row(jnp.int32), sampling, key)
    return programs._compile("decode", lowered)


def _kernel(dtype: Any, layers: int, options: dict[str, float], impl: Any, most: int) -> bool:
    """Compiles the kernels over 64 nodes and the past of a layer, or of one that is scanned."""
    mesh = Topology.of("h100:1").mesh(1, 1)
    nodes, heads, mates, dim = 64, 8, 4, 128
    everywhere = NamedSharding(mesh, PartitionSpec())
    of_nodes, cache = (1, heads, nodes, dim), (1, heads * layers, SLOTS, dim)
    shapes = [((1, nodes, heads * mates, dim), dtype), (of_nodes, dtype), (of_nodes, dtype)]
    shapes += [((1, nodes, nodes), bool), ((1, nodes), jnp.int32), (cache, dtype), (cache, dtype)]
    shapes += [((1,), jnp.int32), ((), jnp.int32)]

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
    return kernels == most and not spilled


def _spilled(folder: Path) -> int | None:
    """Counts the bytes of registers that are kept in memory; None where PTXAS is not set."""
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
    sys.exit(main(sys.argv[1], sys.argv[2:]))
