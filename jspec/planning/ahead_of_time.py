"""A plan with the figures of its compiled programs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from jspec import backend
from jspec.errors import InputError
from jspec.planning import compiled
from jspec.planning.compiled import Compiled
from jspec.planning.plan import COMPILED, Plan
from jspec.planning.setting import Setting


def compile_plan(planned: Plan, mesh: Any, layers: Sequence[Setting] = ()) -> Plan:
    """The plan with temporaries and flops of the compiled programs: prefill, and the rounds.

    Args:
        planned: the plan.
        mesh: of devices at hand, or of a `Topology`.
        layers: the same setting with two smaller numbers of layers, to compile in place of its own,
            whose figures are then on the line through theirs; empty: its own.

    Raises:
        InputError: if the compiler finds that a program does not fit the device's memory.
    """
    setting = planned.setting
    found = [_compiled(each, mesh) for each in layers or [setting]]
    programs = found[0]
    if len(found) > 1:
        total = getattr(setting.model, "num_layers", 0)
        programs = [
            compiled.extended(few, more, total) for few, more in zip(*found[:2], strict=True)
        ]
    most = max(program.temporaries for program in programs)
    return replace(planned, temporaries=most, temporaries_are=COMPILED, compiled=tuple(programs))


def _compiled(setting: Setting, mesh: Any) -> list[Compiled]:
    with backend.planned(setting.device.platform):
        model, drafter = setting.model, setting.drafter
        params, drafter_params = setting.placed(mesh)
        call = compiled.call_of(model, setting.rows, setting.slots, setting.max_new_tokens)
        state = compiled.state_of(model, params, drafter, drafter_params, call, mesh)
        try:
            return [
                compiled.prefill(model, params, drafter, drafter_params, call, mesh),
                compiled.rounds(model, params, drafter, drafter_params, state, mesh),
            ]
        except jax.errors.JaxRuntimeError as error:
            reason = " ".join(str(error).split())
            if "RESOURCE_EXHAUSTED" not in reason and "Ran out of memory" not in reason:
                raise
            raise InputError(
                f"the compiler finds no place for a program ({reason:.160}); take fewer rows or "
                "more devices, or plan without --compile for what is nearest"
            ) from error
