"""The command `jspec plan`: what a model and a method will hold and take, before they run."""

import os
import re
from typing import Annotated

import typer

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.cli import options
from jspec.cli.parsers import integer
from jspec.methods import BUNDLED
from jspec.sessions import method_choice

DOES_NOT_FIT = 3
"""The exit code of a plan that does not fit the memory of its devices."""
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
    rows: Annotated[
        int, typer.Option(parser=integer, metavar="B", help="Rows that decode together.")
    ] = 1,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            parser=integer,
            metavar="N",
            help="Most tokens of a row, prompt and output.",
            show_default="the model's context, 2048 at most",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            parser=integer,
            metavar="N",
            help="Most tokens of an output, among those of a row.",
            show_default="128, or half of a short row",
        ),
    ] = None,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Such as v5e, v5p, v6e, H100, H200, A100, or figures: "
            "memory=24e9,bandwidth=1e12,flops=165e12.",
            show_default="this machine's",
        ),
    ] = None,
    num_devices: Annotated[
        int | None,
        typer.Option(
            "--devices",
            parser=integer,
            metavar="N",
            help="So many, over which the weights are split.",
            show_default="1, or those of --topology",
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            help="Devices for the rows and for the weights, such as data=2,model=4.",
            show_default=False,
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A slice of TPUs, such as v5e:2x4, or the GPUs of a host, such as h100:8.",
            show_default=False,
        ),
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the programs, for this machine or for the --topology, which need not be "
            "here, and take temporaries and flops from XLA.",
        ),
    ] = False,
    compile_layers: Annotated[
        str | None,
        typer.Option(
            metavar="FEW,MORE",
            help="Compile so many layers, and put all of them on the line through the two.",
            show_default="all layers",
        ),
    ] = None,
    scan_layers: Annotated[
        bool,
        typer.Option(
            "--scan-layers", help="Layers that are alike are scanned, and compile as one."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of the table.")
    ] = False,
) -> int:
    """Say what a model holds and takes on every device, before it is there.

    No weights are read, but for a method with a trained head. All figures are predicted, none is
    measured. Exit code 0: it fits; 3: it does not; 2: bad input.
    """
    choice = method_choice.choose(method, speculative_config)
    draft = method_choice.draft_model(choice, model, draft_model)
    axes = _axes(mesh, num_devices)
    few_layers = _layers(compile_layers)
    if few_layers and not compiled:
        raise InputError("--compile-layers was given without --compile; add it, or leave it out")
    if topology is not None:
        if device is not None:
            raise InputError(
                f"--topology {topology} and --device {device} were both given; a topology says "
                "which device it is of, so leave --device out"
            )
        # What is traced runs here, whatever it is compiled for.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

    # From here on JAX is imported.
    from jspec.cli import planning
    from jspec.sessions import compilation

    compilation.keep_on_disk()
    asked = planning.PlanOptions(
        model or BUNDLED, draft, choice, dtype, rows, max_model_len, max_new_tokens, device, axes,
        topology, compiled, few_layers, scan_layers, kv_dtype,
    )  # fmt: skip
    return 0 if planning.run(asked, as_json) else DOES_NOT_FIT


def _axes(mesh: str | None, num_devices: int | None) -> dict[str, int] | None:
    """The axes that `--mesh` or `--devices` gives; None: neither was given.

    Raises:
        InputError: if they are no axes, or disagree.
    """
    if num_devices is not None:
        check_integer("--devices", num_devices, 1, _MOST_DEVICES)
    if mesh is None:
        return None if num_devices is None else {"data": 1, "model": num_devices}
    axes: dict[str, int] = {}
    for part in mesh.split(","):
        name, size = (text.strip() for text in part.partition("=")[::2])
        if name not in ("data", "model") or name in axes or not re.fullmatch("[0-9]{1,9}", size):
            raise InputError(
                f"--mesh is {mesh!r:.80}; pass axes such as data=2,model=4, each of them once"
            )
        axes[name] = int(size)
        check_integer(f"{name} of --mesh", axes[name], 1, _MOST_DEVICES)
    found = {"data": 1, "model": 1} | axes
    total = found["data"] * found["model"]
    if num_devices not in (None, total):
        raise InputError(
            f"--mesh {mesh} has {total} devices and --devices is {num_devices}; leave one out"
        )
    return found


def _layers(given: str | None) -> tuple[int, ...]:
    """The two numbers of layers of `--compile-layers`."""
    if given is None:
        return ()
    parts = given.split(",")
    numbers = tuple(int(part) for part in parts if part.strip().isdecimal())
    if len(numbers) != len(parts) or len(numbers) != 2 or not 0 < numbers[0] < numbers[1]:
        raise InputError(f"--compile-layers is {given!r}; pass two rising numbers, such as 4,8")
    return numbers
