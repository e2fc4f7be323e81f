"""A plan as `jspec plan` makes it: shapes of the models, the drafter, and what is compiled."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from jspec import models
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._xla import backend
from jspec.cli import plan_text
from jspec.costs import devices
from jspec.costs.devices import Device
from jspec.models.published_shapes import SHAPES
from jspec.planning import Plan, compile_plan, plan
from jspec.planning.nearest import nearest
from jspec.planning.setting import Setting
from jspec.planning.topology import Topology, mesh_here
from jspec.sessions.method_choice import Choice


@dataclass(frozen=True)
class PlanOptions:
    """What the command line asks for."""

    model: str
    draft_model: str | None
    choice: Choice
    dtype: str | None
    rows: int
    max_model_len: int | None
    max_new_tokens: int | None
    device: str | None
    axes: Mapping[str, int] | None
    topology: str | None
    compiled: bool
    few_layers: tuple[int, ...]
    scan_layers: bool = False
    kv_dtype: str | None = None


def run(asked: PlanOptions, as_json: bool) -> bool:
    """Prints the plan. Returns whether it fits.

    Raises:
        InputError: if the models, the method, the devices and the rest do not fit together.
    """
    planned = make(asked)
    others = [] if planned.fits else nearest(planned)
    if as_json:
        told = {"model": asked.model, "method": asked.choice.method.name} | planned.as_dict()
        told["nearest"] = [
            {
                "rows": each.rows,
                "capacity": each.capacity,
                "mesh": {"data": each.data, "model": each.model_parallel},
            }
            for each in others
        ]
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        name = f"the shape {asked.model}" if asked.model in SHAPES else asked.model
        plan_text.show(name, asked.choice.method.name, planned, others)
    return planned.fits


def make(asked: PlanOptions) -> Plan:
    """The plan, compiled if that was asked for."""
    if asked.compiled and asked.device is not None:
        raise InputError(
            f"--compile compiles for this machine, and --device is {asked.device}; leave one of "
            "them out, or name a --topology such as v5e:2x4 or h100:1"
        )
    topology = None if asked.topology is None else Topology.of(asked.topology)
    device = _device(asked, topology)
    axes = asked.axes or {"data": 1, "model": 1 if topology is None else topology.num_devices}
    if topology is not None and axes["data"] * axes["model"] != topology.num_devices:
        raise InputError(
            f"the mesh data={axes['data']},model={axes['model']} has "
            f"{axes['data'] * axes['model']} devices and {topology.name} has "
            f"{topology.num_devices}; give axes whose product is {topology.num_devices}"
        )

    target, built = _built(asked, device, None)
    context = built.model.context
    capacity = min(context or 2048, 2048) if asked.max_model_len is None else asked.max_model_len
    check_integer("--rows", asked.rows, 1, None)
    check_integer("--max-model-len", capacity, 2, context, "the model's context")
    # A short context is half prompt, half output.
    new = min(128, capacity // 2) if asked.max_new_tokens is None else asked.max_new_tokens
    check_integer("--max-new-tokens", new, 1, capacity - 1, "below --max-model-len")
    whole = plan(
        target, built, device=device, rows=asked.rows, capacity=capacity, max_new_tokens=new, **axes
    )
    if not asked.compiled:
        return whole
    mesh = mesh_here(**axes) if topology is None else topology.mesh(**axes)
    few = [_shallower(asked, device, whole.setting, count) for count in asked.few_layers]
    kept = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    # What is compiled for a device that is not there cannot be read back from disk.
    jax.config.update("jax_enable_compilation_cache", kept and topology is None)
    try:
        return compile_plan(whole, mesh, few)
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)


def _shallower(asked: PlanOptions, device: Device, setting: Setting, count: int) -> Setting:
    """The setting of a model with fewer layers."""
    most = setting.model.num_layers  # pyright: ignore[reportAttributeAccessIssue]
    if count > most:
        raise InputError(
            f"--compile-layers has {count} and {asked.model} has {most} layers; give fewer"
        )
    target, built = _built(asked, device, count)
    return replace(
        setting, model=built.model, params=target.params, drafter=built.drafter,
        drafter_params=built.drafter_params,
    )  # fmt: skip


def _device(asked: PlanOptions, topology: Topology | None) -> Device:
    if topology is not None:
        return topology.device
    return devices.here() if asked.device is None else devices.find(asked.device)


def _built(asked: PlanOptions, device: Device, num_layers: int | None) -> tuple[Any, Any]:
    """The shapes of the target, and the drafter of the method on the device."""
    method = asked.choice.method
    with backend.planned(device.platform):
        if method.needs_training and (asked.model in SHAPES or num_layers):
            raise InputError(
                f"method {method.name} has a trained head, and {asked.model} has none; take "
                "another method, or a model with a head"
            )
        layout: Any = {"scan_layers": asked.scan_layers, "kv_dtype": asked.kv_dtype}
        if method.needs_training:
            # A head is known by the weights of its target.
            target = models.load(asked.model, asked.dtype, **layout)
        else:
            target = models.shapes(asked.model, asked.dtype, num_layers=num_layers, **layout)
        draft = None
        if asked.draft_model is not None:
            draft = models.shapes(asked.draft_model, asked.dtype, kv_dtype=asked.kv_dtype)
        built = method.build(target, draft, **asked.choice.options)
    return target, built
