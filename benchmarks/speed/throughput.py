"""Tokens per second of `pmap(decode)`, and of batched `decode` on a mesh of 1 to 8 devices.

python -m benchmarks.speed.throughput                 # eight virtual devices on a CPU
"""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer


def main(
    devices: Annotated[str, typer.Option(help="numbers of devices, comma-separated")] = "1,2,4,8",
    batch: Annotated[int, typer.Option(min=1, help="rows per device")] = 4,
    new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    methods: Annotated[
        str, typer.Option(help="comma-separated, next to plain decoding")
    ] = "token_recycling,auto",
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
    from jspec.types import PyTree

    if max(counts) > jax.device_count():
        raise typer.BadParameter(f"{max(counts)} devices asked for, {jax.device_count()} here")
    loaded = load(model)
    ids = [loaded.tokenizer.encode(text).ids[:32] for text in texts("stories", batch)]
    prompts = np.array([row for row in ids if len(row) == 32])
    llms = {name: build(name, loaded) for name in ("autoregressive", *methods.split(","))}

    def generate(llm: jspec.LLM, params: PyTree, weights: PyTree, prompt: jax.Array) -> jax.Array:
        return jspec.decode(
            llm.model, params, prompt, max_new_tokens=new_tokens,
            **llm.drafting | {"drafter_params": weights},
        ).lengths  # fmt: skip

    kind = "simulated, " if jax.devices()[0].platform == "cpu" else ""
    headline(f"throughput, {kind}{len(prompts)} rows a device, {new_tokens} new tokens, greedy")
    names = [f"{how} {name}" for how in ("pmap", "jit") for name in llms]
    table = Table("devices", *names, title="tokens per second in all, and of one device")
    for count in counts:
        used = jax.devices()[:count]
        shards = np.broadcast_to(prompts, (count, *prompts.shape))

        mesh = jax.make_mesh((count,), ("data",), (AxisType.Auto,), devices=used)
        rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))

        def by_pmap(llm: jspec.LLM, used=used, shards=shards) -> Any:
            run = jax.pmap(partial(generate, llm), in_axes=(None, None, 0), devices=used)
            return lambda: run(llm.params, llm.drafter_params, shards)

        def by_jit(llm: jspec.LLM, rows=rows, whole=whole, shards=shards) -> Any:
            run = jax.jit(partial(generate, llm))
            weights = jax.device_put((llm.params, llm.drafter_params), whole)
            batch = jax.device_put(shards.reshape(-1, shards.shape[-1]), rows)
            return lambda: run(*weights, batch)

        ways = {"pmap": by_pmap, "jit": by_jit}
        runs = {
            f"{how} {name}": way(llm) for how, way in ways.items() for name, llm in llms.items()
        }
        seconds = paired(runs, repeats)
        total = count * len(prompts) * new_tokens
        speeds = {name: total / float(np.median(value)) for name, value in seconds.items()}
        table.add_row(
            str(count), *(f"{speed:,.0f}, {speed / count:,.0f}" for speed in speeds.values())
        )
        record(
            out,
            {"bench": "throughput", "devices": count, "rows": len(prompts)}
            | {name: value.tolist() for name, value in seconds.items()},
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
