"""Lyanna (Chen et al. 2026), Table 1, Fig. 5, Table 2: variants of its head, trained alike.

python -m benchmarks.lyanna.variants rows.jsonl --work DIR --out variants.jsonl

Each variant is trained from first weights of its own for each seed, on what `jspec train data`
wrote. The acceptance of its likeliest tokens on held-out text is scored on the way, and at the end
its trees' acceptance in greedy decoding. A run that was stopped goes on; other seeds may follow.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.lyanna import trained_heads
from benchmarks.lyanna.trained_heads import Run, histograms
from jspec._validate.errors import InputError
from jspec.cli import train_heads, train_texts
from jspec.methods import BUNDLED
from jspec.models.fingerprint import fingerprint

VARIANTS: dict[str, dict[str, Any]] = {
    "Lyanna": {},
    "w/o token info": {"rank": 0},
    "w/o first token": {"first_token": False},
    "sparse": {"hot_tokens": 1024},
}
"""Changes to the whole head; sparse: token info of a quarter of 4,096 tokens."""
NODES = (15, 36)
"""Drafted nodes of the trees: the paper verifies 15 and a root, and the whole tree."""


def main(
    text: Annotated[list[Path], typer.Argument(help="files of `jspec train data`")],
    work: Annotated[Path, typer.Option(help="folder of the runs; those that are there go on")],
    model: options.Model = None,
    only: Annotated[str, typer.Option(help="variants, comma-separated")] = ",".join(VARIANTS),
    seeds: Annotated[str, typer.Option(help="seeds of training, comma-separated")] = "0,1,2",
    steps: Annotated[int, typer.Option(min=8, help="updates of each")] = 240,
    batch_size: Annotated[int, typer.Option(min=1, help="sequences an update")] = 8,
    sequence: Annotated[int, typer.Option(min=8, help="tokens a sequence")] = 128,
    places: Annotated[int, typer.Option(min=0, help="places that are scored; 0: all")] = 32,
    count: Annotated[int, typer.Option(min=0, help="prompts of a class; 0: no decoding")] = 6,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 64,
    out: options.Out = None,
) -> None:
    """Trains what is missing, and writes a row for each score."""
    chosen = only.split(",")
    if unknown := sorted(set(chosen) - set(VARIANTS)):
        raise InputError(f"there is no variant {unknown[0]!r}; use some of {', '.join(VARIANTS)}")
    subject = model_pairs.subject(model, None, None, options.ALL_CLASSES)
    fixed = {
        "steps": steps, "batch_size": batch_size, "sequence": sequence, "places": places,
        "learning_rate": 5e-3, "warmup": 20, "weight_decay": 0.0, "state_weight": 0.1,
        "token_weight": 1.0, "heldout": 0.08, "scores": 8,
    }  # fmt: skip
    target = fingerprint(subject.target.params)[:16]
    about = {"bench": "lyanna.variants", "target": target, **fixed, "prompt_tokens": prompt_tokens}
    ledger = Ledger(out, about | {"new_tokens": new_tokens, "count": count})
    headline(f"Variants of Lyanna's head: {subject.name}, {steps} steps")
    for seed in map(int, seeds.split(",")):
        for name in chosen:
            mine = {"variant": name, "seed": seed}
            if ledger.find(done=True, **mine):
                continue
            console.print(f"{name}, seed {seed}", highlight=False)
            job = train_heads.job("lyanna", None, {**fixed, **VARIANTS[name], "seed": seed})
            texts = train_texts.find_texts([str(file) for file in text], None, Path())
            ready = train_heads.prepare("lyanna", job, model or BUNDLED, texts)
            folder = work / f"{steps}-{name.replace('/', '')}-{seed}".replace(" ", "-")
            ready.train(folder, True, work / "states")
            run = Run(folder)
            for line in run.heldout_curve:
                (score,) = (value for key, value in line.items() if key != "step")
                if not ledger.find(step=line["step"], **mine):
                    ledger.add(**mine, step=line["step"], heldout=score)
            head, variables = run.load(subject.target)
            for nodes in NODES if count else ():
                if ledger.find(nodes=nodes, **mine):
                    continue
                asked = subject.of_all_classes(count, prompt_tokens)
                tree = trained_heads.tree(head, nodes)
                found = histograms(subject, tree, variables, asked, new_tokens)
                ledger.add(**mine, nodes=nodes, histograms=found.tolist())
            ledger.add(**mine, done=True)


if __name__ == "__main__":
    command(main)
