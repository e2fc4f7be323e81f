"""The same trees, judged by recursive rejection, traversal verification and coupling.

python -m benchmarks.rsd.tree_verifiers
"""

from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, record
from benchmarks.rsd.settings import TEMPERATURES
from benchmarks.texts import join
from benchmarks.whole_rounds import Decoding
from jspec.verify.schemes import COUPLED, RECURSIVE, TRAVERSAL, Scheme

SCHEMES = {"recursive": RECURSIVE, "traversal": TRAVERSAL, "coupled": COUPLED}

Build = Callable[[jspec.CausalLM, Scheme], jspec.Drafter]
TREES: dict[str, Build] = {
    "chain of 4": lambda model, scheme: jspec.RSDC(model, (1,) * 4, scheme=scheme),
    "RSD-C 2-2-1": lambda model, scheme: jspec.RSDC(model, (2, 2, 1), scheme=scheme),
    "RSD-S 3x4": lambda model, scheme: jspec.RSDS(model, 3, 4, scheme=scheme),
    "DySpec, 14 nodes": lambda model, scheme: jspec.DySpec(
        model, num_speculative_tokens=14, max_depth=8, beam=4, scheme=scheme
    ),
}


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    count: Annotated[int, typer.Option(min=2, help="Prompts per class.")] = 3,
    prompt_tokens: options.PromptTokens = 32,
    new_tokens: options.NewTokens = 64,
    seeds: Annotated[int, typer.Option(min=1, help="samples of each prompt")] = 4,
    out: options.Out = None,
) -> None:
    """Counts whole rounds; under one key the first two judge draws by the same noise."""
    loaded = model_pairs.pair(model, draft_model, questions, prompts, classes)
    asked = loaded.of_all_classes(count, prompt_tokens)
    headline(f"{loaded.name}: tokens per round of a tree, {asked.count} prompts, {seeds} samples")
    rows = join([asked] * seeds)
    for temperature, top_p in TEMPERATURES:
        table = Table("tree", *SCHEMES, "traversal over recursive")
        sampling = jspec.Sampling(temperature=temperature, top_p=top_p)
        for name, build in TREES.items():
            found = {}
            for verifier, scheme in SCHEMES.items():
                decoding = Decoding(
                    loaded.target.model, loaded.target.params,
                    build(loaded.draft.model, scheme), loaded.draft.params, new_tokens,
                )  # fmt: skip
                counted = decoding.count(rows, sampling=sampling, key=0)
                tokens, rounds = (
                    each.reshape(seeds, -1).sum(0) for each in (counted.tokens, counted.rounds)
                )
                found[verifier] = tokens / rounds
            means = {verifier: float(each.mean()) for verifier, each in found.items()}
            ratios = found["traversal"] / found["recursive"]
            error = float(ratios.std(ddof=1) / np.sqrt(len(ratios)))
            table.add_row(
                name,
                *(f"{mean:.3f}" for mean in means.values()),
                f"{ratios.mean():.3f} ± {error:.3f}",
            )
            record(
                out,
                {"bench": "tree_verifiers", **loaded.about, "temperature": temperature}
                | {"top_p": top_p, "tree": name, "tokens_per_round": means}
                | {"traversal_over_recursive": float(ratios.mean()), "error": error},
            )
        console.print(f"temperature {temperature}, top-p {top_p}:", table)
    console.print("±: standard error over prompts.")


if __name__ == "__main__":
    command(main)
