"""Tokens per second of `pmap(decode)` over 1, 2, 4 and 8 devices.

python -m benchmarks.speed.throughput                 # eight virtual devices on a CPU
"""

import os
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

    import jax
    import numpy as np
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

    headline(f"pmap throughput, {len(prompts)} rows a device, {new_tokens} new tokens, greedy")
    table = Table("devices", "plain tokens/s", f"{method} tokens/s", "speed-up")
    for count in counts:
        used = jax.devices()[:count]
        shards = np.broadcast_to(prompts, (count, *prompts.shape))

        def runner(drafter, weights, used=used, shards=shards):
            run = jax.pmap(
                lambda params, prompt: (
                    jspec.decode(
                        loaded.model,
                        params,
                        prompt,
                        drafter=drafter,
                        drafter_params=weights,
                        max_new_tokens=new_tokens,
                    ).lengths
                ),
                in_axes=(None, 0),
                devices=used,
            )
            return lambda: run(loaded.params, shards)

        runs = {name: runner(*pair) for name, pair in drafters.items()}
        seconds = paired(runs, repeats)
        total = count * len(prompts) * new_tokens
        speeds = {name: total / float(np.median(value)) for name, value in seconds.items()}
        gain = float(np.median(seconds["plain"] / seconds[method]))
        table.add_row(str(count), f"{speeds['plain']:.0f}", f"{speeds[method]:.0f}", f"{gain:.2f}x")
        record(
            out,
            {"bench": "throughput", "devices": count, "rows": len(prompts), "method": method}
            | {name: value.tolist() for name, value in seconds.items()},
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
