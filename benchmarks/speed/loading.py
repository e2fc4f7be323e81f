"""Memory that loading onto a mesh takes beside the parts themselves, by format.

python -m benchmarks.speed.loading        # random weights in the proportions of Llama 8B
"""

import ctypes
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def main(
    scale: Annotated[int, typer.Option(min=1, help="sizes are those of Llama 8B over this")] = 8,
    layers: Annotated[int, typer.Option(min=1)] = 4,
    parts: Annotated[int, typer.Option(min=1, help="devices that weights are split over")] = 8,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Writes random weights as safetensors and in orbax's format, and loads both onto a mesh.

    Memory is what the process holds that no file does (RssAnon), looked at every millisecond.
    """
    flag = f"--xla_force_host_platform_device_count={parts}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

    import jax
    import numpy as np
    from jax.sharding import AxisType
    from rich.table import Table

    from benchmarks.harness import console, headline, record
    from jspec import models
    from jspec.models import checkpoint, export

    config = models.LlamaConfig(
        vocab_size=128256 // scale, hidden_size=4096 // scale, intermediate_size=14336 // scale,
        num_layers=layers, num_heads=32, num_kv_heads=8, head_dim=128 // scale, context=8192,
    )  # fmt: skip
    model = models.Llama(config)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape, np.float32), checkpoint.shapes(model)
    )
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
    mesh = jax.make_mesh((parts,), ("model",), (AxisType.Auto,))
    headline(f"loading {sum(sizes) / 1e6:.0f} MB onto {parts} devices, float32")
    table = Table("format", "model MB", "part MB", "largest tensor MB", "beside the parts MB")
    with tempfile.TemporaryDirectory() as folder:
        export.save_hf(model, params, f"{folder}/hf", dtype="float32")
        models.save(f"{folder}/orbax", model, jax.tree.map(jax.numpy.asarray, params))
        del params
        loaders: dict[str, Callable[[], Any]] = {
            "safetensors": lambda: (
                models.load(f"{folder}/hf", "float32", with_tokenizer=False, mesh=mesh).params
            ),
            "orbax": lambda: models.restore(f"{folder}/orbax", mesh=mesh)[1],
        }
        for name, load in loaders.items():
            load()  # imports, and what is compiled
            beside = _most(load) - sum(sizes)
            row = [sum(sizes), sum(sizes) // parts, max(sizes), beside]
            table.add_row(name, *(f"{size / 1e6:.1f}" for size in row))
            record(out, {"bench": "loading", "format": name, "beside": beside, "sizes": sizes})
    console.print(table)


def _most(load: Callable[[], Any]) -> int:
    """The most bytes that loading held at once, beyond what was held before."""
    gc.collect()
    # What was freed is given back to the system only when glibc is asked to.
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    before, peak, over = _held(), 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not over.is_set():
            peak = max(peak, _held())
            time.sleep(0.001)

    looking = threading.Thread(target=look)
    looking.start()
    kept = load()
    over.set()
    looking.join()
    del kept
    return peak - before


def _held() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


if __name__ == "__main__":
    typer.run(main)
