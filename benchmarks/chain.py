"""Tokens per round of a draft model's chain: is it a useful draft for its target?

python -m benchmarks.chain --model smollm2-135m --draft-model DIR --questions question.jsonl
"""

from typing import Annotated

import typer
from rich import box
from rich.table import Table

from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.results.statistics import ratio
from benchmarks.whole_rounds import Decoding
from jspec.drafters.draft_model.speculative_decoding import SpeculativeDecoding
from jspec.types import Sampling


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    length: Annotated[int, typer.Option(min=1, help="drafted tokens of a round")] = 4,
    temperatures: Annotated[str, typer.Option(help="comma-separated")] = "0,1",
    count: options.Count = 5,
    prompt_tokens: options.PromptTokens = 32,
    new_tokens: options.NewTokens = 64,
    out: options.Out = None,
) -> None:
    """Decodes the same texts at each temperature, by the published rule of rejection."""
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes)
    about = {"bench": "chain", **pair.about, "ratio": round(pair.ratio, 4), "length": length}
    about |= {"count": count, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    ledger = Ledger(out, about)
    headline(f"Chains of {length}: {pair.name}, {pair.ratio:.3f} of the target's weights")
    drafter = SpeculativeDecoding.published(pair.draft.model, num_speculative_tokens=length)
    target = pair.target
    one = Decoding(target.model, target.params, drafter, pair.draft.params, new_tokens)
    for temperature in map(float, temperatures.split(",")):
        for kind in pair.classes:
            if not ledger.find(temperature=temperature, kind=kind):
                asked = pair.prompts(kind, count, prompt_tokens)
                found = one.count(asked, sampling=Sampling(temperature), key=0)
                counted = {"tokens": found.tokens.tolist(), "rounds": found.rounds.tolist()}
                ledger.add(temperature=temperature, kind=kind, **counted)
    shown = Table("tokens per round", *pair.classes, "all", box=box.MARKDOWN)
    for temperature in map(float, temperatures.split(",")):
        rows = [ledger.find(temperature=temperature, kind=kind)[-1] for kind in pair.classes]
        each = [str(ratio(row["tokens"], row["rounds"])) for row in rows]
        tokens, rounds = ([n for row in rows for n in row[what]] for what in ("tokens", "rounds"))
        shown.add_row(f"temperature {temperature:g}", *each, str(ratio(tokens, rounds)))
    console.print(shown)


if __name__ == "__main__":
    command(main)
