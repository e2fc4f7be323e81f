"""The command `jspec plan`: compiles what a model and a method will run, and shows its size."""

import json
import os
import re
import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.cli import options
from jspec.methods import BUNDLED
from jspec.sessions import method_choice

DOES_NOT_FIT = 3
"""The exit code of programs that hold more than the memory of their devices."""
_MOST_DEVICES = 2**16


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Folder or config.json, GGUF file, hub id, or a shape: llama-1b, llama-3b, "
            "llama-8b, llama-70b, llama-405b, qwen3-next-80b, deepseek-v3, gemma4-e2b, "
            "gpt-oss-20b, gpt-oss-120b.",
            show_default="the bundled model",
        ),
    ] = None,
    draft_model: options.DraftModel = None,
    method: options.MethodName = None,
    speculative_config: options.SpeculativeConfig = None,
    rows: Annotated[int, options.integer_option("Rows decoded together.", metavar="B")] = 1,
    max_model_len: options.MaxModelLen = None,
    max_new_tokens: Annotated[
        int | None,
        options.integer_option(
            "Maximum number of new tokens of a row; part of --max-model-len.",
            show_default="128, or half of --max-model-len if less",
        ),
    ] = None,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Compile for chips that are not here: a slice of TPUs, such as v5e:2x4, or the "
            "GPUs of a host, such as h100:8.",
            show_default="this machine's",
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            help="Number of devices that rows (data) and weights (model) are split over, such as "
            "data=2,model=4.",
            show_default="model=1, or all of --topology",
        ),
    ] = None,
    scan_layers: Annotated[
        bool,
        typer.Option("--scan-layers", help="Compile equal layers once and scan over them."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the table.")
    ] = False,
) -> int:
    """Compile the programs of a model and a method, and report their memory and kernel launches.

    Runs nothing, and reads no weights except a trained head's. Exit code 0: the programs fit the
    memory of a device; 3: they do not; 2: bad input.
    """
    choice = method_choice.choose(method, speculative_config)
    draft = method_choice.draft_model(choice, model, draft_model)
    axes = _axes(mesh)
    if topology is not None:
        # What is traced runs here, whatever it is compiled for.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

    # From here on JAX is imported.
    import jax

    from jspec import models
    from jspec.costs import devices
    from jspec.planning import Programs, Topology, mesh_here
    from jspec.sessions import compilation

    compilation.keep_on_disk()
    machine = None if topology is None else Topology.of(topology)
    axes = axes or {"data": 1, "model": 1 if machine is None else machine.num_devices}
    if machine is not None and axes["data"] * axes["model"] != machine.num_devices:
        raise InputError(
            f"the mesh data={axes['data']},model={axes['model']} has "
            f"{axes['data'] * axes['model']} devices and {machine.name} has {machine.num_devices}; "
            f"give axes whose product is {machine.num_devices}"
        )
    name, picked = model or BUNDLED, choice.method
    device = devices.here() if machine is None else machine.device
    chips = mesh_here(**axes) if machine is None else machine.mesh(**axes)
    with nullcontext() if machine is None else machine.plan():
        laid_out: Any = {"scan_layers": scan_layers, "kv_dtype": kv_dtype}
        # A head is known by the weights of its target.
        read = models.load if picked.needs_training else models.shapes
        target = read(name, dtype, **laid_out)
        drafts = None if draft is None else models.shapes(draft, dtype, kv_dtype=kv_dtype)
        llm = picked.build(target, drafts, **choice.options)
    context = llm.model.context
    capacity = min(context or 2048, 2048) if max_model_len is None else max_model_len
    check_integer("--rows", rows, 1, None)
    check_integer("--max-model-len", capacity, 2, context, "the model's context")
    # A short context is half prompt, half output.
    new = min(128, capacity // 2) if max_new_tokens is None else max_new_tokens
    check_integer("--max-new-tokens", new, 1, capacity - 1, "below --max-model-len")
    programs = Programs(
        llm.model, llm.params, llm.drafter, llm.drafter_params, chips, rows, capacity, new,
        None, llm.policy, llm.policy_params,
    )  # fmt: skip
    compiled = [programs.prefill(), programs.rounds()]
    usable = devices.usable(device)
    fits = max(each.held for each in compiled) <= usable
    head = {
        "model": name, "method": picked.name, "rows": rows, "capacity": capacity,
        "device": device.name, "mesh": axes, "usable": usable, "fits": fits,
    }  # fmt: skip
    if as_json:
        sys.stdout.write(
            json.dumps(head | {"programs": [each.as_dict() for each in compiled]}) + "\n"
        )
    else:
        _show(head, compiled, jax.__version__)
    return 0 if fits else DOES_NOT_FIT


def _axes(mesh: str | None) -> dict[str, int] | None:
    """Reads the axes of `--mesh`."""
    if mesh is None:
        return None
    axes: dict[str, int] = {}
    for part in mesh.split(","):
        name, size = (text.strip() for text in part.partition("=")[::2])
        if name not in ("data", "model") or name in axes or not re.fullmatch("[0-9]{1,9}", size):
            raise InputError(
                f"--mesh is {mesh!r:.80}; pass axes such as data=2,model=4, each of them once"
            )
        axes[name] = int(size)
        check_integer(f"{name} of --mesh", axes[name], 1, _MOST_DEVICES)
    return {"data": 1, "model": 1} | axes


def _show(head: dict[str, Any], compiled: list[Any], version: str) -> None:
    """Prints the programs as a table, what a GPU launches, and whether they fit."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    count = head["mesh"]["data"] * head["mesh"]["model"]
    print(
        f"{head['model']}, method {head['method']}, {head['rows']} x {head['capacity']} tokens, on "
        f"{count} x {head['device']} (data={head['mesh']['data']}, model={head['mesh']['model']}); "
        f"XLA of JAX {version}, figures of one device"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("program")
    for title in ("arguments", "temporaries", "GFLOP", "accessed", "code", "compiled in"):
        table.add_column(title, justify="right")
    for each in compiled:
        table.add_row(
            each.function, _size(each.arguments), _size(each.temporaries),
            f"{each.flops / 1e9:.4g}", _size(each.accessed), _size(each.code),
            f"{each.seconds:.0f} s",
        )  # fmt: skip
    console.print(table)
    for each in compiled:
        if (launches := each.launches) is not None:
            print(
                f"A round of each width launches {launches.kernels} kernels and copies, in "
                f"{launches.graphs} graphs and {launches.alone} alone, and waits "
                f"{launches.waits} times; {launches.exchanges} exchanges between devices of "
                f"{_size(launches.exchanged)}."
            )
    peak, usable = max(each.held for each in compiled), head["usable"]
    verdict = "fits" if head["fits"] else "does not fit"
    print(f"It {verdict}: a device holds {_size(peak)}, and has {_size(usable)}.")


def _size(count: float) -> str:
    """Returns bytes in words, three digits."""
    for unit, amount in (("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < 999.5 * amount:
            return f"{count / amount:.3g} {unit}"
    return f"{count / 1e12:.3g} TB"
