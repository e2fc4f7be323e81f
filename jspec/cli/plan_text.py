"""A plan as text: a table for memory, one for rounds, the programs, and one last sentence."""

import sys
from collections.abc import Sequence

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from jspec.costs import devices
from jspec.planning import Plan
from jspec.planning.launches import Launches, Rounds
from jspec.planning.plan import COMPILED
from jspec.planning.reachable import DECODE, ENGINE
from jspec.planning.setting import Setting
from jspec.planning.work import DeviceWork

_WIDTH = 100
"""Of what is no terminal."""


def show(name: str, method: str, planned: Plan, others: Sequence[Setting]) -> None:
    """Prints a plan.

    Args:
        name: of the model.
        method: of drafting.
        planned: the plan.
        others: the nearest settings that fit, if it does not.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)

    def say(text: str = "") -> None:
        console.print(text, markup=False, soft_wrap=True)

    say(_head(name, method, planned))
    say()
    console.print(_memory(planned))
    console.print(_rounds(planned))
    say(_about_rounds(planned))
    say()
    say(_programs(planned))
    for line in _compiled(planned):
        say(line)
    for note in planned.notes:
        say(f"Note: {note}.")
    say()
    say(verdict(name, planned, others))


def size(count: float) -> str:
    """Bytes in words, three digits."""
    for unit, amount in (("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < 999.5 * amount:
            return f"{count / amount:.3g} {unit}"
    return f"{count / 1e12:.3g} TB"


def verdict(name: str, planned: Plan, others: Sequence[Setting]) -> str:
    """Whether it fits, by how much, and what is nearest."""
    setting, last = planned.setting, planned.rounds[-1]
    memory = size(devices.usable(setting.device))
    where = f"{setting.num_devices} x {setting.device.name}"
    rows = f"{_count(setting.rows, 'row')} of {setting.capacity} tokens"
    if planned.fits:
        pays = ""
        if last.width:
            whole = last.seconds + planned.draft_seconds
            gain = whole / planned.rounds[0].seconds
            pays = (
                f" A round of {last.width} drafted nodes is predicted to take {gain:.2f} times as "
                f"long as plain decoding: it pays if it brings more than {gain:.2f} tokens."
            )
        return (
            f"{name} with {rows} fits {where}: {size(planned.total)} of {memory} a device, "
            f"{size(planned.spare)} are left.{pays}"
        )
    said = (
        f"{name} with {rows} does not fit {where}: a device would hold {size(planned.total)} and "
        f"has {memory}, {size(-planned.spare)} less."
    )
    if not others:
        return f"{said} Neither fewer rows, nor a shorter context, nor more devices would do."
    return f"{said} It fits with {'; or with '.join(_change(setting, each) for each in others)}."


def _change(setting: Setting, other: Setting) -> str:
    if other.rows != setting.rows:
        return f"{_count(other.rows, 'row')} (--rows {other.rows})"
    if other.capacity != setting.capacity:
        return f"a context of {other.capacity} (--max-model-len {other.capacity})"
    mesh = f"--mesh data={other.data},model={other.model_parallel}"
    return f"{other.num_devices} devices ({mesh})"


def _head(name: str, method: str, planned: Plan) -> str:
    setting = planned.setting
    leaves = jax.tree.leaves(setting.params)
    count = sum(leaf.size for leaf in leaves)
    dtype = getattr(setting.model, "dtype", None)
    kind = "" if dtype is None else f", {jax.numpy.dtype(dtype).name}"
    mesh = f"data={setting.data}, model={setting.model_parallel}"
    return (
        f"{name}, {count / 1e9:.3g} billion weights{kind}, method {method}, on "
        f"{setting.num_devices} x {setting.device.name} ({mesh})"
    )


def _memory(planned: Plan) -> Table:
    setting, held = planned.setting, planned.held
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("a device holds")
    table.add_column("", justify="right")
    table.add_column("")
    rows = _count(setting.rows // setting.data, "row")
    capacity = f"{rows} of {setting.capacity} tokens"
    table.add_row("weights", size(held.weights), "")
    if held.drafter_weights >= 1000:  # what rounds cost takes a few bytes
        table.add_row("weights of the drafter", size(held.drafter_weights), "")
    table.add_row("cache", size(held.cache), capacity)
    table.add_row("memory of the drafter", size(held.drafter_state), "")
    table.add_row("prompts, outputs, statistics", size(held.rest), "")
    table.add_row("temporaries", size(planned.temporaries), _temporaries(planned))
    usable, memory = devices.usable(setting.device), setting.device.memory
    part = "" if usable == memory else f", which JAX takes of {size(memory)}"
    table.add_row("together", size(planned.total), f"the device has {size(usable)}{part}")
    return table


def _temporaries(planned: Plan) -> str:
    share = planned.temporaries / max(planned.held.cache, 1)
    return f"{planned.temporaries_are}; {share:.1%} of the cache"


def _rounds(planned: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("a round, a device")
    for title in ("tokens", "GFLOP", "reads", "sends", "predicted", "t(N)/t(1)"):
        table.add_column(title, justify="right")
    device = planned.setting.device
    for each in planned.rounds:
        name = f"{each.width} drafted nodes" if each.width else "plain decoding"
        table.add_row(*_figures(name, each.work, each.seconds), f"{each.relative:.2f}")
    chunk = planned.prefill
    name = f"{chunk.tokens // (planned.setting.rows // planned.setting.data)} tokens of each prompt"
    table.add_row(*_figures(name, chunk, chunk.seconds(device)), "")
    if planned.draft.flops:
        table.add_row(*_figures("a draft", planned.draft, planned.draft_seconds), "")
    return table


def _figures(name: str, work: DeviceWork, seconds: float) -> list[str]:
    numbers = f"{work.flops / 1e9:.4g}", size(work.read), size(work.sent)
    return [name, str(work.tokens), *numbers, f"{seconds * 1e3:.3g} ms"]


def _about_rounds(planned: Plan) -> str:
    device = planned.setting.device
    if device.platform == "cpu":
        return (
            "Predicted and not measured: memory read at "
            f"{device.bandwidth / 1e9:g} GB/s, in the form that products have on a CPU "
            "(jspec bench measures)."
        )
    launching = planned.launching
    launched = ""
    if launching.source:
        launched = (
            f", and launches and waits by {launching.source} counts, of assumed times: "
            f"{_milliseconds(launching.plain)} of plain decoding, "
            f"{_milliseconds(launching.drafted[-1])} of a round that drafts"
        )
        if len(launching.drafted) > 1:
            launched += f", {_milliseconds(launching.rest)} of one that backs off"
    return (
        f"Predicted and not measured: a roofline of {device.flops / 1e12:g} TFLOP/s, "
        f"{device.bandwidth / 1e9:g} GB/s of memory and {device.link / 1e9:g} GB/s to other "
        f"devices{' (' + device.source + ')' if device.source else ''}{launched}."
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms"


def _programs(planned: Plan) -> str:
    setting = planned.setting
    decoding = [one.program for one in planned.programs if one.call == DECODE]
    serving = [one for one in planned.programs if one.call == ENGINE]
    sizes = ", ".join(str(capacity) for capacity in sorted({one.capacity for one in decoding}))
    widths = ", ".join(str(each) for each in planned.widths)
    return (
        f"Programs: jspec.decode has {len(decoding)}, prefill and rounds (widths {widths}) for "
        f"{_count(setting.rows, 'row')} of {sizes} tokens; jspec.warmup compiles them. A "
        f"jspec.Engine of {setting.capacity} tokens a row has {len(serving)}: prefill, insert, "
        "generate, take, free."
    )


def _compiled(planned: Plan) -> list[str]:
    if planned.temporaries_are != COMPILED:
        return []
    lines = []
    for one in planned.compiled:
        layers = _layers(one.layers, planned)
        # For a GPU XLA counts neither operations nor code.
        counted = f"{one.flops / 1e9:.4g} GFLOP, {size(one.code)} of code"
        if planned.setting.device.platform == "gpu":
            counted = "compiled, not run"
        lines.append(
            f"XLA, {one.function}: {size(one.temporaries)} of temporaries, {counted}; compiled in "
            f"{one.seconds:.0f} s{layers}."
        )
        if one.rounds is not None:
            lines += _launched(one.rounds, planned.widths)
    return lines


def _launched(rounds: Rounds, widths: Sequence[int]) -> list[str]:
    """What rounds launch, a line each."""
    if len(rounds.widths) == 1:
        return [f"A round: {_in_words(rounds.each)}."]
    lines = [
        f"A round of width {width} that drafts: {_in_words(each)}."
        for width, each in zip(widths, rounds.widths, strict=True)
    ]
    rest = [] if rounds.rest is None else [f"A round that backs off: {_in_words(rounds.rest)}."]
    return lines + rest


def _in_words(launches: Launches) -> str:
    exchanges = ""
    if launches.exchanges:
        exchanges = (
            f"; {_count(launches.exchanges, 'exchange')} of {size(launches.exchanged)} between "
            f"devices, the largest of {size(launches.largest_exchange)}, {launches.beside} of them "
            "beside other work"
        )
    return (
        f"{launches.kernels} kernels and copies, {_count(launches.graphs, 'graph')} and "
        f"{launches.alone} kernels alone that the host launches, "
        f"{_count(launches.waits, 'wait')}{exchanges}"
    )


def _layers(compiled: tuple[int, ...], planned: Plan) -> str:
    if len(compiled) < 2:
        return ""
    total = getattr(planned.setting.model, "num_layers", 0)
    return f" with {compiled[0]} and {compiled[1]} layers, and extended to {total} on their line"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
