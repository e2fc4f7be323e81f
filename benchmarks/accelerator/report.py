"""The tables of all rows that were measured, as they stand in benchmarks/results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from benchmarks.accelerator import ahead, figures
from benchmarks.accelerator.cells import BEGUN
from benchmarks.accelerator.results import Results, median, milliseconds
from benchmarks.accelerator.shapes import BY_LAYER, SCANNED, UNROLLED
from benchmarks.harness import console
from benchmarks.ledger import Ledger
from jspec.models.attention import XLA

SUMMARY = "summary.md"

Columns = Mapping[str, Callable[[dict], str]]
"""What stands over each column of a table, and how a row shows there."""

_COMPILING: Columns = {
    "tracing + compiling, s": lambda row: (
        f"{row['trace_seconds']:.1f} + {row['compile_seconds']:.1f}"
    )
}


def write(rows: Path, folder: Path) -> None:
    """Prints the tables of a file's rows; writes them and the figures to a folder."""
    found = Results.of(Ledger(rows))
    if found is None:
        console.print(f"{rows} holds no rows yet")
        return
    lines = summary(found)
    console.print(escape("\n".join(lines)), soft_wrap=True, highlight=False)
    (folder / SUMMARY).write_text("\n".join(lines) + "\n", "utf-8")
    for path in figures.draw(found, folder):
        console.print(f"figure: {path}", soft_wrap=True)


def summary(found: Results) -> list[str]:
    """The lines of a section of benchmarks/results/engineering_devices.md."""
    lines = [*_head(found)]
    parts = (
        _first,
        _grid,
        _ways,
        _plain,
        _forced,
        _overhead,
        _methods,
        _parity,
        _loops,
        _attention,
        _bits,
        _beside,
        _errors,
    )
    for part in parts:
        if told := part(found):
            lines += ["", *told]
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    cells = [list(head), ["---"] * len(head), *map(list, rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def of_rows(said: str, rows: Iterable[dict], columns: Columns) -> list[str]:
    """A sentence and a table with a line for each row that did not fail; nothing without rows."""
    cells = [[show(row) for show in columns.values()] for row in rows if "error" not in row]
    return [said, "", *table(list(columns), cells)] if cells else []


def _head(found: Results) -> list[str]:
    last, device, scale = found.last, found.device, found.scale
    measured = (
        f"{last['date']}, {last['device']}, JAX {last['jax']}, Python {last['python']}, sources "
        f"{last['sources']}. A Llama of {scale.name} shape in {scale.dtype} with random weights, "
        f"{scale.past} of {scale.capacity} slots live."
    )
    command = ["```", "python -m benchmarks.accelerator", "```"]
    lines = [f"### {last['kind']}, {scale.name}", "", measured, "", *command]
    if device:
        sheet = device["data_sheet_bandwidth"]
        told = f"The data sheet says {sheet / 1e9:.0f} GB/s; a" if sheet else "A"
        settings = {**device["preallocation"], "XLA_FLAGS": device["XLA_FLAGS"]}
        read = device["read_bandwidth"]
        also = f", reading the weights {read / 1e9:.0f} GB/s" if read else ""
        lines += [
            "",
            f"{told} copy moves {device['copy_bandwidth'] / 1e9:.0f} GB/s{also}. Settings: "
            + ", ".join(f"{name} {value or 'not set'}" for name, value in settings.items())
            + ".",
        ]
    return lines


def write_compiled(rows: Path) -> None:
    """Prints the table of programs that were compiled and not run."""
    lines = compiled_table(Ledger(rows).rows)
    console.print(escape("\n".join(lines)), soft_wrap=True, highlight=False)


def compiled_table(rows: Sequence[dict]) -> list[str]:
    """A line for each program that was compiled and not run."""

    def about(row: dict) -> str:
        names = ("method", "way", "part", "what", "body", "of", "by", "dtype", "batch", "width")
        more = ("tokens", "capacity", "rows")
        told = (f"{name} {row[name]}" for name in (*names, *more) if row.get(name) is not None)
        return ", ".join(told) + (", one graph" if row.get("one_graph") else "")

    columns: Columns = {
        "section": lambda row: row["section"],
        "program": about,
        "compiled in, s": lambda row: f"{row['compile_seconds']:.1f}",
        "kernels": lambda row: str(row["kernels"]),
        "temporaries, MB": lambda row: f"{row['temporaries'] / 1e6:.1f}",
        "launches of a round": lambda row: _kinds_launched(row),
        "predicted, ms": lambda row: _milliseconds(row.get("kinds")),
    }
    known = [row for row in rows if BEGUN not in row]
    if not known:
        return []
    said = f"Compiled for {known[-1]['kind']} by JAX {known[-1]['jax']}, and not run:"
    failed = [
        f"- {row['section']}, {about(row)}: {row['error']}" for row in known if "error" in row
    ]
    return [*of_rows(said, known, columns), *failed]


def _kinds_launched(row: dict) -> str:
    """Kernels, what the host launches, and its waits, of each kind of round."""
    launched = row.get("launched")
    if not launched:
        return ""
    kinds = list(row.get("kinds") or ())
    counts = list(launched["widths"])
    if launched["rest"]:
        counts.insert(0, launched["rest"])
    names = kinds if len(kinds) == len(counts) else [""] * len(counts)
    return "; ".join(
        f"{name}{name and ': '}{one['kernels']}, {one['alone'] + one['graphs']}, {one['waits']}"
        for name, one in zip(names, counts, strict=True)
    )


def _milliseconds(kinds: Mapping[str, Any] | None) -> str:
    """The time of each kind of round, measured or predicted."""
    if not kinds:
        return ""
    return "; ".join(
        f"{name}: {1e3 * float(np.median(seconds)):.2f}" for name, seconds in kinds.items()
    )


def _first(found: Results) -> list[str]:
    columns: Columns = {
        "method": lambda row: row["method"],
        "batch": lambda row: str(row["batch"]),
        "one CUDA graph": lambda row: "yes" if row["one_graph"] else "no",
        "ms a round": lambda row: _milliseconds(row["kinds"]),
        "kernels, launched by the host, waits": _kinds_launched,
        **_COMPILING,
    }
    return of_rows("What decides most:", found.find(section="first"), columns)


def _beside(found: Results) -> list[str]:
    """What was predicted of this device without one, and what was measured."""
    known = {
        _key(row): row
        for row in ahead.predicted(found.last["kind"], found.last["scale"])
        if "error" not in row and row.get("kinds")
    }
    rows = [row for row in found.find(section="first") if "error" not in row and _key(row) in known]
    cells = []
    for row in rows:
        other = known[_key(row)]
        plain = [
            each["kinds"]["plain"]
            for each in (known.get(_plain_key(row)), _by_key(rows, _plain_key(row)))
            if each
        ]
        for kind, seconds in row["kinds"].items():
            times = other["kinds"].get(kind), float(np.median(seconds))
            ratios = ["" for _ in times]
            if len(plain) == 2:
                ratios = [
                    f"{float(time) / float(np.median(one)):.2f}"
                    for time, one in zip(times, plain, strict=True)
                ]
            about = row["method"], str(row["batch"]), "yes" if row["one_graph"] else "no", kind
            milliseconds = [f"{1e3 * time:.2f}" for time in times]
            launched = _kinds_launched(other), _kinds_launched(row)
            cells.append([*about, *milliseconds, *ratios, *launched])
    if not cells:
        return []
    head = ["method", "batch", "one graph", "round", "ms, predicted", "measured"]
    head += ["over plain, predicted", "measured", "launches, predicted", "counted here"]
    return ["Predicted (compiled, not run) and measured:", "", *table(head, cells)]


def _key(row: dict) -> tuple:
    return row["section"], row.get("method"), row.get("batch"), row.get("one_graph")


def _plain_key(row: dict) -> tuple:
    return row["section"], "plain", row["batch"], row["one_graph"]


def _by_key(rows: Iterable[dict], key: tuple) -> dict | None:
    return next((row for row in rows if _key(row) == key), None)


def _grid(found: Results) -> list[str]:
    grid = found.grid()
    if not grid:
        return []
    widths = sorted({width for _, width in grid})
    rows = []
    for batch in sorted({batch for batch, _ in grid}):
        one = grid.get((batch, 1))
        cells = [found.ratio_cell(grid.get((batch, width)), one) for width in widths]
        bound = found.bound_cell(one)
        rows.append([str(batch), found.cell(one, milliseconds), bound, *cells])
    return [
        f"t(N)/t(1), the layers run {found.scale.grid}; in brackets the bound over t(N):",
        "",
        *table(["batch", "t(1), ms", "bound, ms", *(f"N {width}" for width in widths)], rows),
    ]


def _ways(found: Results) -> list[str]:
    forwards = found.forwards()
    sizes = dict.fromkeys(
        (batch, width) for way, batch, width in forwards if way in (UNROLLED, SCANNED)
    )
    ways = (UNROLLED, BY_LAYER, SCANNED)
    if found.scale.grid == UNROLLED:  # then the grid is full of them
        sizes = dict.fromkeys(key[1:] for key in forwards if key[0] == SCANNED)
    if not sizes:
        return []
    rows = []
    for batch, width in sizes:
        cells = [forwards.get((way, batch, width)) for way in ways]
        compiled = [cell and cell.get("compile_seconds") for cell in (cells[0], cells[2])]
        rows.append(
            [f"{batch}, {width}", *(found.cell(cell, milliseconds) for cell in cells)]
            + [f"{seconds:.1f}" if seconds else "" for seconds in compiled]
        )
    head = ["batch, N", *(f"{way}, ms" for way in ways)]
    head += [f"compiling {UNROLLED}, s", f"{SCANNED}, s"]
    return ["The same forward with its layers run in other ways:", "", *table(head, rows)]


def _plain(found: Results) -> list[str]:
    def bound(row: dict) -> float:
        return found.bound(row["batch"], 1)

    columns: Columns = {
        "batch": lambda row: str(row["batch"]),
        "tokens/s": lambda row: f"{row['batch'] / median(row):.0f}",
        "ms a round": milliseconds,
        "bound, ms": lambda row: f"{1e3 * bound(row):.3f}",
        "of the bound": lambda row: f"{bound(row) / median(row):.0%}",
        "all but the forward": found.share,
        "kernels a round": lambda row: str(row["kernels"].get("round", "")),
        **_COMPILING,
    }
    rows = found.find(section="rounds", method="plain")
    return of_rows("Plain decoding in its loop:", rows, columns)


def _forced(found: Results) -> list[str]:
    columns: Columns = {
        "batch": lambda row: str(row["batch"]),
        "tokens a round, forced": lambda row: f"{row['tokens_per_round']:.2f}",
        "ms a round": milliseconds,
        "plain, ms": lambda row: milliseconds({"seconds": row["plain_seconds"]}),
        "speed over plain": lambda row: f"{np.median(row['gains']):.2f}x",
        "all but the forward": found.share,
        "kernels a round": lambda row: str(row["kernels"].get("round", "")),
        **_COMPILING,
    }
    said = (
        f"**Forced** acceptance: trees of {found.scale.nodes} nodes, as many tokens kept as asked "
        "for, whatever the model says; in turn with plain decoding:"
    )
    return of_rows(said, found.find(section="rounds", method="forced"), columns)


def _overhead(found: Results) -> list[str]:
    def kernels(name: str) -> Callable[[dict], str]:
        return lambda row: str(row["kernels"].get(name, "")).strip("[]")

    columns: Columns = {
        "drafter": lambda row: (
            f"{row['method']}, {row['forced']} tokens" if row["forced"] else row["method"]
        ),
        "batch": lambda row: str(row["batch"]),
        "ms a round": milliseconds,
        "tokens a round": lambda row: f"{row['tokens_per_round']:.2f}",
        "kernels a round": kernels("round"),
        "a pass of each loop inside": kernels("inner"),
        "conditionals": kernels("conditionals"),
        "command buffers": kernels("command_buffers"),
        **_COMPILING,
    }
    said = "Everything but the forward: rounds of a target whose forward is a look-up in a table:"
    return of_rows(said, found.find(section="overhead"), columns)


def _methods(found: Results) -> list[str]:
    columns: Columns = {
        "model": lambda row: row["model"],
        "method": lambda row: row["method"],
        "tokens a round": lambda row: f"{found.method(row).tokens_per_round:.2f}",
        "tokens/s": lambda row: f"{found.method(row).rate:.0f}",
        "speed over plain": lambda row: f"{found.method(row).gain:.2f}x",
        "by prompt": lambda row: "{0.lowest:.2f} .. {0.highest:.2f}".format(found.method(row)),
        "texts unlike plain": lambda row: f"{row['differing']}/{row['num_prompts']}",
        "dtype": lambda row: row["dtype"],
    }
    rows = found.find(section="methods")
    source = ", ".join(dict.fromkeys(row["prompts"] for row in rows))
    said = f"Real text ({source}), batch 1, greedy, prefill included:"
    return of_rows(said, rows, columns)


def _parity(found: Results) -> list[str]:
    columns: Columns = {
        "model": lambda row: row["model"],
        "dtype": lambda row: row["dtype"],
        "matmul precision": lambda row: row["precision"],
        "method": lambda row: row["method"],
        "equal to plain": lambda row: (
            f"{row['sequences'] - len(row['first_divergence'])}/{row['sequences']}"
        ),
        "first divergence at token": lambda row: (
            ", ".join(map(str, sorted(row["first_divergence"]))) or "none"
        ),
    }
    said = "Greedy tokens, drafted against plain, all prompts in one batch:"
    return of_rows(said, found.find(section="parity"), columns)


def _loops(found: Results) -> list[str]:
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    variants = []
    for row in found.find(section="loops"):
        variant = row["variant"] or "as it is"
        name = {
            "loop": lambda row: f"a pass of a loop: {row['body']}",
            "round": lambda row: f"a round but for its forward: {row['of']}",
            "walk": lambda row: f"the walk that emits {row['tokens']}",
            "choice": lambda row: f"{row['of']} of {row['rows']} x {found.scale.config.vocab_size}",
        }[row["what"]](row)
        rows.setdefault(name, {})[variant] = row
        variants = list(dict.fromkeys([*variants, variant]))
    if not rows:
        return []

    def microseconds(row: dict) -> str:
        return f"{1e6 * median(row):.1f}"

    cells = [
        [name, *(found.cell(by.get(variant), microseconds) for variant in variants)]
        for name, by in rows.items()
    ]
    return ["Control flow, in microseconds:", "", *table(["what", *variants], cells)]


def _attention(found: Results) -> list[str]:
    def fastest(row: dict) -> str:
        name = min((one for one in row["least"] if one != repr(XLA)), key=row["least"].get)
        return f"{1e3 * row['least'][name]:.4f}, {name}"

    columns: Columns = {
        "batch, tokens, capacity": lambda row: (
            f"{row['batch']}, {row['tokens']}, {row['capacity']}"
        ),
        "XLA, ms": lambda row: f"{1e3 * row['xla']:.4f}",
        "the fastest kernel, ms": lambda row: fastest(row) if len(row["least"]) > 1 else "none ran",
        "speed over XLA, if one is used": lambda row: (
            "XLA is used"
            if row["chosen"] == repr(XLA)
            else f"{row['xla'] / row['least'][row['chosen']]:.2f}x"
        ),
        "kernels that failed": lambda row: "; ".join(row["errors"].values()) or "none",
    }
    said = "Tree attention, a random tree in depth-first order, all slots live:"
    return of_rows(said, found.find(section="attention"), columns)


def _bits(found: Results) -> list[str]:
    rows = [row for row in found.find(section="bits") if "error" not in row]
    told = [f"- {row['said']}" for row in rows if row["what"] == "forwards"]

    def unlike(way: str) -> Callable[[dict], str]:
        return lambda row: ", ".join(row[way]["unlike one row"]) or "none"

    def microseconds(way: str) -> Callable[[dict], str]:
        return lambda row: ", ".join(
            f"{rows}: {1e6 * float(np.median(seconds)):.0f}"
            for rows, seconds in row[way]["seconds"].items()
        )

    columns: Columns = {
        "product": lambda row: row["of"],
        "parts of a sum": lambda row: str(row["parts"]),
        "kernel, us by rows": microseconds("kernel"),
        "XLA, us": microseconds("XLA"),
        "kernel: rows whose first is unlike that of one": unlike("kernel"),
        "XLA": unlike("XLA"),
    }
    products = [row for row in rows if row["what"] == "product"]
    said = "Products by a kernel whose tiles do not depend on the rows, beside XLA's:"
    lines = of_rows(said, products, columns)
    return [*told, *([""] if told and lines else []), *lines]


def _errors(found: Results) -> list[str]:
    names = ("section", "variant", "way", "method", "what", "body", "batch", "width", "dtype")
    said = {True: "its scores are not finite"}
    wrong = [(row, row.get("error") or said.get(row.get("finite") is False)) for row in found.rows]
    return [
        f"- {', '.join(str(row[name]) for name in names if row.get(name))}: {what}"
        for row, what in wrong
        if what
    ]
