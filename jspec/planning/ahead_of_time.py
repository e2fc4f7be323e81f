"""A plan with the figures of its compiled programs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

import jspec
from jspec._validate.errors import InputError
from jspec._xla import backend
from jspec.planning import compiled
from jspec.planning.compiled import Compiled
from jspec.planning.plan import COMPILED, Launching, Plan
from jspec.planning.setting import Setting
from jspec.protocols import Drafter
from jspec.types import PyTree

PLAIN = "rounds of plain decoding"
"""The name of their program."""


def compile_plan(planned: Plan, mesh: Any, layers: Sequence[Setting] = ()) -> Plan:
    """The plan with temporaries and flops of the compiled programs: prefill, and the rounds.

    For a GPU with launches and waits too, and those of plain decoding beside them.

    Args:
        planned: the plan.
        mesh: of devices at hand, or of a `Topology`.
        layers: the same setting with two smaller numbers of layers, to compile in place of its own,
            whose figures are then on the line through theirs; empty: its own.

    Raises:
        InputError: if the compiler refuses a program, such as one with no place in the device's
            memory.
    """
    setting = planned.setting
    found = [_compiled(each, mesh) for each in layers or [setting]]
    programs = found[0]
    if len(found) > 1:
        total = getattr(setting.model, "num_layers", 0)
        programs = [
            compiled.extended(few, more, total) for few, more in zip(*found[:2], strict=True)
        ]
    most = max(program.temporaries for program in programs[:2])
    found = replace(planned, temporaries=most, temporaries_are=COMPILED, compiled=tuple(programs))
    drafted, plain = programs[1].rounds, programs[-1].rounds
    if drafted is None or plain is None:
        return found
    rest = plain.each if drafted.rest is None else drafted.rest
    of_widths = tuple(each.seconds for each in drafted.widths)
    return found.with_launching(Launching(plain.each.seconds, of_widths, rest.seconds, COMPILED))


def _compiled(setting: Setting, mesh: Any) -> list[Compiled]:
    """Prefill and rounds; for a GPU also the rounds of plain decoding, unless those are it."""
    with backend.planned(setting.device.platform):
        model = setting.model
        params, drafter_params = setting.placed(mesh)
        call = compiled.call_of(model, setting.rows, setting.capacity, setting.max_new_tokens)

        def rounds(drafter: Drafter, drafter_params: PyTree) -> Compiled:
            given = model, params, drafter, drafter_params
            return compiled.rounds(*given, compiled.state_of(*given, call, mesh), mesh)

        drafted = setting.drafter, drafter_params
        programs: dict[str, Callable[[], Compiled]] = {
            "prefill": lambda: compiled.prefill(model, params, *drafted, call, mesh),
            "rounds": lambda: rounds(*drafted),
        }
        if setting.device.platform == "gpu" and not isinstance(
            setting.drafter, jspec.Autoregressive
        ):
            programs[PLAIN] = lambda: replace(rounds(jspec.Autoregressive(), None), function=PLAIN)
        return [_or_sentence(name, setting, program) for name, program in programs.items()]


def _or_sentence(name: str, setting: Setting, program: Callable[[], Compiled]) -> Compiled:
    """A compiled program.

    Raises:
        InputError: if the compiler refuses it.
    """
    try:
        return program()
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())
        where = f"the program of {name} does not compile for {setting.device.name} ({reason:.160})"
        if "RESOURCE_EXHAUSTED" in reason or "Ran out of memory" in reason:
            raise InputError(
                f"{where}: there is no place for it; take fewer rows or more devices, or plan "
                "without --compile for what is nearest"
            ) from error
        raise InputError(f"{where}; take another method, or plan without --compile") from error
