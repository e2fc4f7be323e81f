"""Tokens per second of `pmap(decode)`, and of batched `decode` on a mesh of 1 to 8 devices.

python -m benchmarks.speed.throughput                 # eight virtual devices on a CPU
"""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def main(
    devices: Annotated[str, typer.Option(help="numbers of devices, comma-separated")] = "1,2,4,8",
    batch: Annotated[int, typer.Option(min=1, help="rows per device")] = 4,
    new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    method: Annotated[str, typer.Option()] = "token_recycling",
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Decodes the same rows greedily on every device.

    Virtual devices share one CPU: they show that the program scales, not that the machine does.
    """
    counts = [int(count) for count in devices.split(",")]
    # Has to be said before JAX starts; an accelerator's devices are what they are.
    flag = f"--xla_force_host_platform_device_count={max(counts)}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    os.environ.setdefault("NPROC", "32")  # threads in which virtual devices wait for others

    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec
    from rich.table import Table

    import jspec
    from benchmarks.harness import console, headline, paired, record
    from benchmarks.prompts import texts
    from jspec.methods import build
    from jspec.models import load

    if max(counts) > jax.device_count():
        raise typer.BadParameter(f"{max(counts)} devices asked for, {jax.device_count()} here")
    loaded = load(model)
    ids = [loaded.tokenizer.encode(text).ids[:32] for text in texts("stories", batch)]
    prompts = np.array([row for row in ids if len(row) == 32])
    drafters = {
        "plain": (jspec.Autoregressive(), None),
        method: build(method, loaded)[1:],
    }

    kind = "simulated, " if jax.devices()[0].platform == "cpu" else ""
    headline(f"throughput, {kind}{len(prompts)} rows a device, {new_tokens} new tokens, greedy")
    names = [f"{how} {name}" for how in ("pmap", "jit") for name in ("plain", method)]
    table = Table("devices", *(f"{name} tokens/s" for name in names), "pmap gain", "jit gain")
    for count in counts:
        used = jax.devices()[:count]
        shards = np.broadcast_to(prompts, (count, *prompts.shape))

        mesh = jax.make_mesh((count,), ("data",), (AxisType.Auto,), devices=used)
        rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))

        def generate(drafter, params, weights, prompt):
            return jspec.decode(
                loaded.model, params, prompt, drafter=drafter, drafter_params=weights,
                max_new_tokens=new_tokens,
            ).lengths  # fmt: skip

        def by_pmap(drafter, weights, used=used, shards=shards, generate=generate):
            run = jax.pmap(partial(generate, drafter), in_axes=(None, None, 0), devices=used)
            return lambda: run(loaded.params, weights, shards)

        def by_jit(drafter, weights, rows=rows, whole=whole, shards=shards, generate=generate):
            run = jax.jit(partial(generate, drafter))
            held = jax.device_put((loaded.params, weights), whole)
            batch = jax.device_put(shards.reshape(-1, shards.shape[-1]), rows)
            return lambda: run(*held, batch)

        ways = {"pmap": by_pmap, "jit": by_jit}
        runs = {
            f"{how} {name}": way(*pair)
            for how, way in ways.items()
            for name, pair in drafters.items()
        }
        seconds = paired(runs, repeats)
        total = count * len(prompts) * new_tokens
        speeds = {name: total / float(np.median(value)) for name, value in seconds.items()}
        gains = [np.median(seconds[f"{how} plain"] / seconds[f"{how} {method}"]) for how in ways]
        table.add_row(
            str(count),
            *(f"{speeds[name]:.0f}" for name in names),
            *(f"{float(gain):.2f}x" for gain in gains),
        )
        record(
            out,
            {"bench": "throughput", "devices": count, "rows": len(prompts), "method": method}
            | {name: value.tolist() for name, value in seconds.items()},
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
