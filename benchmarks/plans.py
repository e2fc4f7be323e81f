"""Plans of 8B, 70B and 405B shapes up to 256 chips, as the tables of docs/plans.md.

python -m benchmarks.plans                    # predicted: seconds for a row
python -m benchmarks.plans --compiled         # by libtpu, in an environment with jspec-jax[tpu]

Nothing here is measured: there need be no such device. A round of width 1 is plain decoding, one
of 64 verifies 63 drafted nodes and the root, by Token Recycling.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from jspec.cli.plan_text import size
from jspec.sessions import method_choice

_WIDTHS = {
    1: ("autoregressive", None),
    64: (None, '{"method": "token_recycling", "num_speculative_tokens": 63}'),
}
"""Method and `--speculative-config` of a round that scores so many tokens."""


@dataclass(frozen=True)
class Case:
    """A shape on devices.

    Args:
        shape: a name of `jspec.models.shapes`.
        where: a topology, or the name of a device.
        data: devices for the rows.
        model: devices for the weights.
        rows: that decode together.
        capacity: most tokens of a row.
        scan_layers: whether layers are scanned, so that a deep model compiles in minutes.
    """

    shape: str
    where: str
    data: int
    model: int
    rows: int
    capacity: int
    scan_layers: bool = False


PREDICTED = (
    Case("llama-8b", "v5e:2x4", 1, 8, 1, 8192),
    Case("llama-8b", "v5e:2x4", 1, 8, 32, 8192),
    Case("llama-8b", "v6e:1x1", 1, 1, 8, 8192),
    Case("llama-8b", "H100", 1, 1, 1, 8192),
    Case("llama-8b", "H100", 1, 1, 32, 8192),
    Case("llama-70b", "v5e:4x8", 2, 16, 16, 2048),
    Case("llama-70b", "v6e:4x4", 2, 8, 32, 8192),
    Case("llama-70b", "v5p:2x2x2", 1, 8, 32, 8192),
    Case("llama-70b", "H100", 1, 8, 1, 8192),
    Case("llama-70b", "H100", 1, 8, 32, 8192),
    Case("llama-405b", "v5e:16x16", 2, 128, 16, 1024),
    Case("llama-405b", "v6e:16x16", 8, 32, 32, 2048),
    Case("llama-405b", "v5p:4x4x4", 4, 16, 64, 4096),
    Case("llama-405b", "v5p:4x8x8", 16, 16, 256, 4096),
    Case("llama-405b", "H200", 2, 8, 16, 2048),
)
COMPILED = (
    Case("llama-8b", "v5e:2x4", 1, 8, 32, 8192),
    Case("llama-70b", "v6e:4x4", 2, 8, 32, 8192),
    Case("llama-70b", "v5e:4x8", 2, 16, 16, 2048),
    Case("llama-405b", "v5e:16x16", 2, 128, 16, 1024, scan_layers=True),
)


def main(
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Compile those that are compiled, with libtpu.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="This shape alone, such as llama-8b.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON lines of whole plans: what is there is not made again."),
    ] = None,
) -> None:
    """Prints plans as Markdown: predicted, or compiled ahead of time; none is measured."""
    # Whatever is compiled for, what is traced runs here.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jspec.planning.topology import prepare_environment

    prepare_environment()
    cases = [case for case in (COMPILED if compiled else PREDICTED) if only in (None, case.shape)]
    rows = _compiled(cases, out) if compiled else _predicted(cases)
    for row in rows:
        typer.echo("| " + " | ".join(row) + " |")


def _predicted(cases: list[Case]) -> Iterator[list[str]]:
    yield [
        "shape", "devices", "data x model", "rows x context", "weights", "cache", "temporaries",
        "of", "fits", "t(1)", "t(64)", "t(64)/t(1)",
    ]  # fmt: skip
    yield ["---"] * 12
    for case in cases:
        planned = _plan(case, 64, False)
        held, last = planned.held, planned.rounds[-1]
        times = planned.rounds[0].seconds, last.seconds
        setting = planned.setting
        yield [
            *_named(case, setting),
            *(size(part) for part in (held.weights, held.cache, planned.temporaries)),
            size(planned.total + planned.spare),
            "yes" if planned.fits else f"{size(-planned.spare)} too much",
            *(f"{seconds * 1e3:.3g} ms" for seconds in times),
            f"{last.relative:.2f}",
        ]


def _compiled(cases: list[Case], out: Path | None) -> Iterator[list[str]]:
    kept = {}
    if out is not None and out.exists():
        for line in out.read_text("utf-8").splitlines():
            found = json.loads(line)
            kept[found["key"]] = found
    yield [
        "shape", "devices", "data x model", "rows x context", "width", "weights", "cache",
        "temporaries", "of the cache", "flops of a round, XLA", "flops, plan", "compiled in",
        "layers",
    ]  # fmt: skip
    yield ["---"] * 13
    for case in cases:
        for width in _WIDTHS:
            key = f"{case} {width}"
            if key not in kept:
                planned = _plan(case, width, True)
                kept[key] = {"key": key, "named": _named(case, planned.setting)}
                kept[key] |= planned.as_dict() | {"scanned": case.scan_layers}
                if out is not None:
                    with out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(kept[key]) + "\n")
            yield _compiled_row(width, kept[key])


def _compiled_row(width: int, told: dict[str, Any]) -> list[str]:
    held = told["bytes_per_device"]
    _, rounds = told["compiled"]
    seconds = sum(one["seconds"] for one in told["compiled"])
    return [
        *told["named"],
        str(width),
        *(size(held[part]) for part in ("weights", "cache", "temporaries")),
        f"{held['temporaries'] / held['cache']:.1%}",
        f"{rounds['flops'] / 1e9:.4g} G",
        f"{told['rounds'][-1]['flops'] / 1e9:.4g} G",
        f"{seconds:.0f} s",
        "scanned" if told.get("scanned") else "unrolled",
    ]


def _named(case: Case, setting: Any) -> list[str]:
    count = setting.num_devices
    where = case.where if ":" in case.where else f"{count} x {case.where}"
    chips = f"{where} ({count})" if ":" in case.where else where
    mesh = f"{case.data} x {case.model}"
    return [case.shape, chips, mesh, f"{case.rows} x {case.capacity}"]


def _plan(case: Case, width: int, compiled: bool) -> Any:
    from jspec.cli import planning

    method, config = _WIDTHS[width]
    topology = case.where if ":" in case.where else None
    return planning.make(
        planning.PlanOptions(
            model=case.shape,
            draft_model=None,
            choice=method_choice.choose(method, config),
            dtype="bfloat16",
            rows=case.rows,
            max_model_len=case.capacity,
            max_new_tokens=128,
            device=None if topology else case.where,
            axes={"data": case.data, "model": case.model},
            topology=topology,
            compiled=compiled,
            few_layers=(),
            scan_layers=case.scan_layers,
        )
    )


if __name__ == "__main__":
    typer.run(main)
