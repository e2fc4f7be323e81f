"""Spine's templates from what a model writes, and what templates are worth on other questions.

python -m benchmarks.spine_templates --model smollm2-135m --questions question.jsonl --out FILE
python -m benchmarks.spine_templates --questions question.jsonl --templates FILE
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.prompts import LEARNING
from benchmarks.recycling.bench import Bench
from benchmarks.recycling.wordings import wording
from benchmarks.results.statistics import Estimate, ratio
from benchmarks.texts import pad
from benchmarks.whole_rounds import DEEPEST
from jspec.cli.bench.questions import Question
from jspec.drafters.contrib.spine import _likeliest, _spine
from jspec.drafters.contrib.spine_trees import COPY, MATCHES, TEMPLATES, check, name_node
from jspec.drafters.contrib.spine_trees import Path as Steps
from jspec.drafters.wrapper import DrafterWrapper
from jspec.methods import LLM, ngram_tables
from jspec.training.distill import count_unlooped

RANKS = 8
"""Candidates after a node that have a place in a template."""
NODES = 63
"""Of a template."""
PRIOR = 16
"""Rounds that those of all classes count as, beside a class's own."""
NOTHING = -2
"""Behind the text's end: no token."""


Answer = tuple[list[int], list[int]]
"""A prompt, and what the target wrote after it, as far as it does not repeat itself."""


@dataclass(frozen=True)
class Lookahead(DrafterWrapper):
    """Spine that notes the path of its names which the text took, as far as they reach.

    Its params have the text. Of a round there is the class, the tokens that were rightly copied,
    and the ranks of those after them; -1 where there is none.
    """

    drafter: jspec.Spine
    most: int
    """Rounds, at most."""

    def init(self, batch, capacity, earlier):
        rounds = jnp.full((batch, self.most, 2 + self.drafter.passes), -1, jnp.int32)
        return self.drafter.init(batch, capacity, None), rounds, jnp.zeros(batch, jnp.int32)

    def prefill(self, params, state, chunk):
        return self.drafter.prefill(params[0], state[0], chunk), *state[1:]

    def draft(self, params, state, frame):
        (table, text), drafter = params, self.drafter
        tree, _ = drafter.draft(table, state[0], frame)
        before, match, copy = _spine(state[0].text, drafter.max_depth)
        kind = (match[:, None] >= jnp.array(MATCHES)).sum(-1)
        # After the token before the root, and the root.
        steps = jnp.arange(drafter.max_depth + drafter.passes + 1, dtype=jnp.int32)
        future = text[frame.positions[:, None] + 1 + steps]
        path = jnp.concatenate([before[:, None], frame.root[:, None], future], axis=1)

        def at(values, place):
            return jnp.take_along_axis(values, place[:, None], axis=1)

        right = copy == future[:, : drafter.max_depth]
        copies = jnp.cumprod(right, axis=1, dtype=jnp.int32).sum(-1)
        end, ranks = copies, []
        for number in range(drafter.passes):
            older, last = at(path, end), at(path, end + 1)
            names, probs = drafter._candidates(table, state[0], older, jnp.maximum(last, 0))
            if number == 0:  # the next copied token is no branch
                following = at(copy, jnp.minimum(copies, drafter.max_depth - 1))
                probs = jnp.where(names == following[..., None], 0.0, probs)
            best = _likeliest(names, probs, RANKS)[0][:, 0] == at(future, end)
            there = best.any(-1) & (end == copies + number)
            ranks.append(jnp.where(there, best.argmax(-1), -1))
            end += there
        # What the text's end cut short is left out: what its last tokens led to is not seen.
        kind = jnp.where(at(future, end)[:, 0] == NOTHING, -1, kind)
        return tree, jnp.stack([kind, copies, *ranks], axis=-1).astype(jnp.int32)

    def update(self, params, state, aux, feedback):
        inner, rounds, number = state
        inner = self.drafter.update(params[0], inner, None, feedback)
        rows = jnp.arange(len(number))
        return inner, rounds.at[rows, number].set(aux, mode="drop"), number + 1


def answers(bench: Bench, questions: Sequence[Question]) -> list[Answer]:
    """Returns what plain decoding answers."""
    pairs = []
    for prompt in (bench.read(question, []) for question in questions):
        plain = bench.plain(pad([prompt]), np.array([bench.new_tokens]))
        text = [*prompt, *plain.tokens[0, : int(plain.lengths[0])].tolist()]
        pairs.append((prompt, text[len(prompt) : count_unlooped(np.array(text, np.int32))]))
    return [pair for pair in pairs if pair[1]]


def rounds(bench: Bench, llm: LLM, pairs: Sequence[Answer]) -> list[tuple[int, Steps]]:
    """Returns the class of each round, and the path that the text took."""
    rows, drafter = [], Lookahead(llm.drafter, bench.new_tokens)
    for prompt, answer in pairs:
        text = np.full(bench.room + bench.new_tokens + 2 * DEEPEST, NOTHING, np.int32)
        text[: len(prompt) + len(answer)] = [*prompt, *answer]
        result = jspec.decode(
            llm.model, llm.params, [prompt], drafter=drafter,
            drafter_params=(llm.drafter_params, text), max_new_tokens=bench.new_tokens,
            stopping=jspec.Stopping(max_tokens=len(answer)),
        )  # fmt: skip
        rows += np.asarray(result.drafter_state[1][0]).tolist()
    return [
        (kind, (COPY,) * copies + tuple(rank for rank in ranks if rank >= 0))
        for kind, copies, *ranks in rows
        if kind >= 0
    ]


def rate(bench: Bench, llm: LLM, pairs: Sequence[Answer]) -> Estimate:
    """Returns the tokens of a round."""
    decoding = bench.decoding(llm)
    each = [decoding.count(pad([prompt]), len(answer), eos=bench.eos) for prompt, answer in pairs]
    tokens, passes = (
        [int(one[0]) for one in values]
        for values in zip(*((one.tokens, one.rounds) for one in each), strict=True)
    )
    return ratio(tokens, passes)


def fit(rounds: Sequence[tuple[int, Steps]], nodes: int = NODES) -> tuple[str, ...]:
    """Returns the templates: the paths that rounds of each class took most often.

    How often a step follows is counted in the rounds of a class that came so far, and in `PRIOR`
    more of all classes.

    Example:
        >>> fit([(0, (0, 0)), (0, (1,)), (1, (-1, -1))], nodes=2)[:2]
        ('0:333 00:333', 'a:373 b:373')
    """
    counts = [Counter() for _ in range(len(MATCHES) + 1)]
    for kind, path in rounds:
        counts[kind].update(path[:size] for size in range(len(path) + 1))
    every = sum(counts, Counter())
    templates = []
    for kind, own in enumerate(counts):
        rates = {(): 1.0}
        for path in sorted(filter(None, every), key=len):
            above = path[:-1]
            if above in rates and (kind or path[-1] != COPY):
                seen = own[path] + PRIOR * every[path] / every[above]
                rates[path] = rates[above] * min(seen / (own[above] + PRIOR), 1.0)
        # Above before below, which may have the same rate.
        best = sorted(rates, key=lambda path: (-rates[path], len(path)))[1 : nodes + 1]
        names = (f"{name_node(path)}:{max(round(1000 * rates[path]), 1)}" for path in best)
        templates.append(" ".join(names))
    return tuple(templates)


def main(
    model: options.Model = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = ",".join(LEARNING),
    count: options.Count = 4,
    prompt_tokens: options.PromptTokens = 48,
    new_tokens: options.NewTokens = 128,
    nodes: Annotated[int, typer.Option(min=1, help="drafted nodes of what is compared")] = 15,
    templates: Annotated[
        list[Path] | None, typer.Option(help="of another model, compared too; may be repeated")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="writes the six templates here")] = None,
) -> None:
    """Decodes greedily at batch 1, each text until it repeats itself.

    Half of the questions make the templates, the others are what they are compared on.
    """
    others = {"jspec's": TEMPLATES}
    for file in templates or []:
        check(text := tuple(file.read_text("utf-8").splitlines()))
        others[file.stem] = text
    subject = model_pairs.subject(model, questions, prompts, classes)
    headline(f"Spine's templates, {subject.name}, {nodes} nodes, {new_tokens} tokens")
    words = wording(subject.target, subject.texts)
    bench = Bench(subject.target, words, new_tokens, prompt_tokens)
    table = ngram_tables.find(subject.target)
    spine = jspec.LLM(subject.target, "spine", num_speculative_tokens=nodes, ngrams=table)
    classes_of = [subject.texts.some(kind, 2 * count) for kind in subject.classes]
    first, second = (
        answers(bench, [one for each in classes_of for one in each[begin::2]]) for begin in (0, 1)
    )
    rows = rounds(bench, spine, first)
    own = fit(rows)
    for line in own:
        console.print(line, highlight=False)
    table = Table("templates", "tokens per round", "of this model's own")
    rates = {
        name: rate(bench, replace(spine, drafter=replace(spine.drafter, templates=text)), second)
        for name, text in ({subject.name: own} | others).items()
    }
    for name, one in rates.items():
        table.add_row(name, f"{one:.3f}", f"{one / rates[subject.name]:.1%}")
    console.print(table)
    console.print(f"{len(rows)} rounds of {len(first)} questions; compared on {len(second)} others")
    if out is not None:
        out.write_text("\n".join(own) + "\n", "utf-8")


if __name__ == "__main__":
    command(main)
