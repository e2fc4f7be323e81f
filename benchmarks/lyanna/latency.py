"""Fig. 13 of Lyanna (Chen et al. 2026): the parts of a draft's time, for Lyanna and EAGLE.

python -m benchmarks.lyanna.latency --out latency.jsonl
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.table import Table

from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, record
from benchmarks.lyanna import trained_heads
from benchmarks.lyanna.pieces import Side, Steps
from benchmarks.lyanna.trained_heads import DEPTH, WIDTH, EagleHead
from benchmarks.pieces import medians

PARTS = ("layer", "head", "softmax", "sampling and tree")
WHOLE = ("draft", "update")
CHAIN = 5
"""Number of draft steps in the paper's Fig. 13 (a)."""


def main(
    model: options.Model = None,
    head: options.Head = None,
    eagle: EagleHead = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="drafted nodes")] = 11,
    prompt_tokens: options.PromptTokens = 24,
    rounds: Annotated[
        int, typer.Option(min=1, help="rounds of decoding whose states are timed")
    ] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="timings at each round")] = 30,
    out: options.Out = None,
) -> None:
    """Times all pieces in turn, on the states that decoding passes through; prints medians."""
    subject = model_pairs.subject(model, questions, prompts, classes)
    heads = {
        kind: trained_heads.trained(kind, named, subject.target)
        for kind, named in {"eagle": eagle, "lyanna": head}.items()
    }
    sides = {
        "EAGLE": Side(subject, *heads["eagle"], nodes),
        "Lyanna": Side(subject, *heads["lyanna"], nodes),
        "Lyanna fused": Side(subject, *heads["lyanna"], nodes, fused=True),
    }
    headline(
        f"Fig. 13: {subject.name}, drafting at batch {batch}, depth {DEPTH}, width {WIDTH}, "
        f"{nodes} drafted nodes, "
        f"{subject.target.model.vocab_size:,} tokens of vocabulary"
    )
    asked = subject.of_all_classes(batch, prompt_tokens).take(slice(batch))
    steps = Steps(*heads["lyanna"], CHAIN)
    states = {name: side.start(asked, rounds) for name, side in sides.items()}
    seen: list[dict[str, float]] = []
    for _ in range(rounds):
        start = states["Lyanna"]
        pieces = steps.pieces(start.drafter_state.hidden, start.root)
        for name, side in sides.items():
            pieces |= {
                f"{name}, {what}": piece for what, piece in side.pieces(states[name]).items()
            }
        seen.append(medians(pieces, repeats))
        states = {name: side.step(states[name]) for name, side in sides.items()}
    times = {name: 1e3 * float(np.median([one[name] for one in seen])) for name in seen[0]}
    for name in ("EAGLE", "Lyanna"):
        whole = times.pop(f"{name}, softmax, sampling and tree")
        times[f"{name}, sampling and tree"] = whole - times[f"{name}, softmax"]
    console.print(chain_table(times))
    console.print(parts_table(times))
    console.print(
        "Each piece is a program of its own and pays for its start; the whole draft does so once, "
        "and knows no seams. Update: the pass over the true pairs of a round. The paper's number: "
        "Lyanna's draft pass, layer and head, takes 0.39 of EAGLE's (LLaMA-2-7B, 32,000 tokens)."
    )
    about = dict(
        bench="lyanna_latency",
        **subject.about,
        batch=batch,
        nodes=nodes,
        rounds=rounds,
        repeats=repeats,
    )
    record(
        out,
        about | {"heads": [trained_heads.digest(held) for _, held in heads.values()], "ms": times},
    )


def chain_table(times: Mapping[str, float]) -> Table:
    """Measures Fig. 13 (a)."""
    shown = Table(
        f"{CHAIN} draft steps, ms", "in turn", "at once", "at once / in turn", box=box.MARKDOWN
    )
    for part in ("head", "softmax", "sampling"):
        turns, once = times[f"in turn, {part}"], times[f"at once, {part}"]
        shown.add_row(part, f"{turns:.3f}", f"{once:.3f}", f"{once / turns:.2f}")
    return shown


def parts_table(times: Mapping[str, float]) -> Table:
    """Measures Fig. 13 (b)."""
    names = ("EAGLE", "Lyanna", "Lyanna / EAGLE", "Lyanna fused", "fused / EAGLE")
    shown = Table("a round's drafting, ms", *names, box=box.MARKDOWN)

    def row(what: str, pick: Callable[[str], float | None]) -> None:
        eagle, one, fused = (pick(name) for name in ("EAGLE", "Lyanna", "Lyanna fused"))
        assert eagle is not None and one is not None
        cells = ("", "") if fused is None else (f"{fused:.3f}", f"{fused / eagle:.2f}")
        shown.add_row(what, f"{eagle:.3f}", f"{one:.3f}", f"{one / eagle:.2f}", *cells)

    for part in (*PARTS, *WHOLE):
        row(part, lambda name, part=part: times.get(f"{name}, {part}"))
    row("layer + head", lambda name: total(times, name, ("layer", "head")))
    row("draft + update", lambda name: total(times, name, WHOLE))
    return shown


def total(times: Mapping[str, float], name: str, parts: Sequence[str]) -> float | None:
    """Returns the sum of the parts' seconds; None where one was not timed."""
    found = [times.get(f"{name}, {part}") for part in parts]
    return None if None in found else sum(filter(None, found))


if __name__ == "__main__":
    command(main)
