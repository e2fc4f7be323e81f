"""The cost of a forward of N tokens here, and the tree of Token Recycling that pays.

python -m benchmarks.recycling.tree_sizes                      # the bundled model
"""

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, paired, record
from benchmarks.texts import pad
from benchmarks.whole_rounds import DEEPEST, Decoding
from jspec.drafters.retrieval.token_recycling import PUBLISHED, fitted


def main(
    model: options.Model = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    sizes: Annotated[
        str, typer.Option(help="nodes with the root, comma-separated")
    ] = "2,4,8,16,32",
    count: options.Count = 2,
    prompt_tokens: options.PromptTokens = 48,
    new_tokens: options.NewTokens = 128,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    out: options.Out = None,
) -> None:
    """Decodes greedily at batch 1; t(N)/t(1) is of rounds that are made to accept nothing."""
    subject = model_pairs.subject(model, questions, prompts, classes)
    loaded = subject.target
    target = loaded.model, loaded.params
    vocab = loaded.model.vocab_size
    read = subject.of_all_classes(count, prompt_tokens)
    asked = [row[None, :size] for row, size in zip(*read, strict=True)]
    templates = {int(size): fitted(int(size) - 1) for size in sizes.split(",")}
    templates[PUBLISHED.num_nodes] = PUBLISHED

    def decode(prompt, **options):
        return jspec.decode(*target, prompt, max_new_tokens=new_tokens, **options)

    headline(f"{subject.name}: trees of Token Recycling, greedy, batch 1, {len(asked)} prompts")
    plain = decode(asked[0])
    runs = {1: lambda: decode(asked[0]).tokens}
    for size, template in templates.items():
        refused = dict(
            drafter=jspec.Scripted(vocab, template),
            drafter_params=jspec.Script(plain.tokens, jnp.array([0])),
        )
        runs[size] = lambda refused=refused: decode(asked[0], **refused).tokens
    seconds = paired(runs, repeats)
    cost = {size: float(np.median(value / seconds[1])) for size, value in seconds.items()}

    table = Table("nodes", "t(N)/t(1)", "tokens per forward", "speed-up measured")
    for size, template in templates.items():
        drafter = jspec.TokenRecycling(vocab, template)
        mean, ratios = _gain(Decoding(*target, drafter, None, new_tokens), asked, repeats)
        table.add_row(str(size), f"{cost[size]:.2f}", f"{mean:.2f}", f"{np.mean(ratios):.2f}x")
        record(
            out,
            {"bench": "trees", "model": subject.name, "nodes": size, "cost": cost[size]}
            | {"mean": mean, "ratios": ratios},
        )
    console.print(table)


def _gain(one: Decoding, asked, repeats: int) -> tuple[float, list[float]]:
    """(tokens per forward, speed-up of each prompt); the matrix goes from prompt to prompt."""
    tokens, rounds, ratios, state = 0, 0, [], None
    for prompt in asked:
        prompts = pad(prompt.tolist())
        counted = one.count(prompts, drafter_state=state)

        def plain(prompts=prompts, limits=counted.tokens):
            size = one.new_tokens + DEEPEST
            return jspec.decode(
                one.model, one.params, prompts.tokens, max_new_tokens=size, limits=limits
            )

        def tree(prompts=prompts, limits=counted.tokens, state=state):
            return one.run(prompts, limits, drafter_state=state)

        timed = paired({"plain": lambda: plain().tokens, "tree": lambda: tree().tokens}, repeats)
        state = tree().drafter_state.inner
        tokens += int(counted.tokens[0])
        rounds += int(counted.rounds[0])
        ratios.append(float(np.median(timed["plain"] / timed["tree"])))
    return tokens / rounds, ratios


if __name__ == "__main__":
    command(main)
