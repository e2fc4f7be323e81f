"""Compiles the kernels of tree attention that Pallas' Mosaic makes for a Hopper GPU, without one.

Needs the extra `cuda-aot`, and NVIDIA's assembler `ptxas`, of the package `nvidia-cuda-nvcc` or of
CUDA's toolkit. Fails where a kernel does not compile, or keeps registers in memory. Nothing is run.
"""

import os

# The programs are for the chip below; whatever runs while they are traced runs here.
os.environ["JAX_PLATFORMS"] = "cpu"
# Pallas prints what the assembler says of a kernel.
os.environ["MOSAIC_GPU_DUMP_PTXAS"] = "1"

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jspec.models.attention import Cached, Past, attend
from jspec.models.block_attention import BlockAttention, Hopper
from jspec.planning import gpu_chips, layout

SLOTS, HEADS, MATES = 2048, 8, 4
BY = BlockAttention(nodes=Hopper(64, num_splits=1), past=Hopper(64))
CASES = {
    "64 nodes of 8B, bfloat16": (jnp.bfloat16, 64, 128, 1, {}),
    "1 node, float16, heads of 64": (jnp.float16, 1, 64, 1, {}),
    "16 nodes, soft cap, window, 4 layers of a scan": (
        jnp.bfloat16, 16, 128, 4, {"soft_cap": 30.0, "window": 1024},
    ),
}  # fmt: skip


def main() -> int:
    chip = gpu_chips.chips("h100", 1)
    mesh = Mesh(np.array(chip).reshape(1, 1), layout.AXES, axis_types=(AxisType.Auto,) * 2)
    # A device that is not there reads no programs back.
    jax.config.update("jax_enable_compilation_cache", False)
    good = [_compiles(name, mesh) for name in CASES]
    return 0 if all(good) else 1


def _compiles(name: str, mesh: Mesh) -> bool:
    dtype, nodes, dim, layers, options = CASES[name]
    everywhere = NamedSharding(mesh, PartitionSpec())
    of_nodes, cache = (1, HEADS, nodes, dim), (1, HEADS * layers, SLOTS, dim)
    shapes = [((1, nodes, HEADS * MATES, dim), dtype), (of_nodes, dtype), (of_nodes, dtype)]
    shapes += [((1, nodes, nodes), bool), ((1, nodes), jnp.int32), (cache, dtype), (cache, dtype)]
    shapes += [((1,), jnp.int32), ((), jnp.int32)]

    def program(q, k, v, mask, positions, keys, values, lengths, layer):
        past = Past(Cached(keys, values, lengths, layer), None)
        return attend(q, k, v, mask, past, positions, **options, impl=BY)

    arguments = map(partial(jax.ShapeDtypeStruct, sharding=everywhere), *zip(*shapes, strict=True))
    # JAX 0.12 asks the mesh for the chip where it lowers kernels.
    with _printed() as told, jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        jax.jit(program).lower(*arguments).compile()
    kernels = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told[0])
    registers = ", ".join(re.findall(r"Used (\d+) registers", told[0]))
    print(f"Hopper, {name}, JAX {jax.__version__}: registers {registers}", flush=True)
    return len(kernels) == 2 and not any(int(size) for each in kernels for size in each)


@contextmanager
def _printed() -> Iterator[list[str]]:
    """What is written to the standard output, by whatever language."""
    told = [""]
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "told"
        with path.open("w") as file:
            os.dup2(file.fileno(), 1)
            try:
                yield told
            finally:
                os.dup2(kept, 1)
                os.close(kept)
                told[0] = path.read_text(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
