"""Table 1 of Token Recycling (Luo et al. 2024) in tokens per round, question by question.

python -m benchmarks.recycling.counts --questions question.jsonl --model smollm2-135m --out FILE
python -m benchmarks.recycling.counts --head jspec-7m/eagle --head jspec-7m/medusa --out FILE
python -m benchmarks.recycling.counts --parts breadth,depth,update --count 20 --out FILE   # Fig. 3
python -m benchmarks.recycling.counts --order shuffled --only "TR, published" --out FILE

All methods have answered a question before the next one is asked, and questions go from task to
task: wherever a run is interrupted, all methods have the same questions of all tasks. The same
command goes on. Nothing is timed.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array, Int

from benchmarks import model_pairs, options
from benchmarks.harness import command, console, few_programs, headline
from benchmarks.ledger import Ledger
from benchmarks.recycling import settings
from benchmarks.recycling.bench import Bench
from benchmarks.recycling.replay import Replay
from benchmarks.recycling.settings import PUBLISHED_LOOKAHEAD, method
from benchmarks.recycling.updates import AcceptedAlone
from benchmarks.recycling.wordings import task, wording
from benchmarks.texts import Prompts, pad
from benchmarks.whole_rounds import DEEPEST, Decoding
from jspec._validate.errors import InputError
from jspec.cli.bench.questions import Question
from jspec.training.distill import count_unlooped
from jspec.training.distributions import observe

LENGTHS = (128, 512, 1024)
"""Prompts are padded to one of these, and else to a multiple of the last: programs are few."""


def methods(parts: Sequence[str], datastore: Path | None, heads: settings.Rows) -> settings.Rows:
    """Returns the lines of these parts of the paper by label, cheapest first."""
    others = [part for part in parts if part != "table"]
    found = {label: row for part in others for label, row in settings.rows(part).items()}
    return found if len(others) == len(parts) else lines(datastore, heads) | found


def lines(datastore: Path | None, heads: settings.Rows) -> settings.Rows:
    """Returns the lines of Table 1 by label, cheapest first.

    Args:
        datastore: for REST, if there is one.
        heads: the rows of trained heads.
    """
    warm = method("lookahead", **PUBLISHED_LOOKAHEAD)
    found = {
        "prompt lookup": replace(method("prompt_lookup"), replayed=True),
        "suffix": replace(method("suffix"), replayed=True),
        "TR, published": method("token_recycling", shape="published"),
        "lookahead": warm,
        "lookahead, cold": replace(warm, cold=True),
        **{label: replace(row, replayed=True) for label, row in heads.items()},
        "auto": method("auto"),
        "spine": method("spine", num_speculative_tokens=63),
    }
    if datastore is not None:
        rest = method("rest", datastore=str(datastore), num_speculative_tokens=64)
        found["REST"] = replace(rest, replayed=True)
    return found


def main(
    out: options.Out = None,
    model: options.Model = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    parts: Annotated[
        str, typer.Option(help=f"comma-separated, of {', '.join(settings.PARTS)}")
    ] = "table",
    only: Annotated[str | None, typer.Option(help="labels of lines, separated by ;")] = None,
    order: Annotated[
        str, typer.Option(help="of the tasks: turns, grouped as Spec-Bench is, or shuffled")
    ] = "turns",
    most: Annotated[int | None, typer.Option(min=1, help="questions in all")] = None,
    count: Annotated[int, typer.Option(min=0, help="questions of each task; 0: all")] = 0,
    datastore: Annotated[
        Path | None, typer.Option(help="file of jspec datastore, for REST")
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option(metavar="DIR|NAME", help="each trained head")
    ] = None,
    ngrams: Annotated[
        Path | None, typer.Option(help="file of jspec warm --out, for spine with this table too")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy")] = 0.0,
    prompt_tokens: options.PromptTokens = 48,
    new_tokens: options.NewTokens = 128,
    scan: Annotated[bool, typer.Option(help="scan the layers: compiles sooner")] = False,
) -> None:
    """Decodes at batch 1; answers end where the target begins to repeat itself."""
    subject = model_pairs.subject(model, questions, prompts, classes, scan)
    words = wording(subject.target, subject.texts)
    bench = Bench(subject.target, words, new_tokens, prompt_tokens, temperature)
    heads: settings.Rows = {}
    for named in head or ():
        heads |= settings.trained(named, subject.target)
    known = methods(parts.split(","), datastore, heads)
    if ngrams is not None:
        row = method("spine", num_speculative_tokens=15, ngrams=str(ngrams))
        known["spine with the table of --ngrams, 15 nodes"] = row
    wanted = {
        label: one for label, one in known.items() if only is None or label in only.split(";")
    }
    setting: dict[str, Any] = dict(
        bench="recycling.counts", **subject.about, new_tokens=new_tokens,
        prompt_tokens=prompt_tokens,
    )  # fmt: skip
    if count:
        setting["count"] = count  # which texts they are depends on it
    asked = list(in_turn(of_tasks(subject, count)))[:most]
    if temperature:
        setting["temperature"] = temperature
    if order != "turns":
        setting["order"] = order
        asked = ordered(asked, order)
    trial = Trial(bench, wanted)
    ledgers = {
        label: Ledger(out, setting | dict(method=label, options=one.told, cold=one.cold))
        for label, one in wanted.items()
    }
    how = f"temperature {temperature:g}, batch 1, {new_tokens} new tokens a turn"
    headline(f"{subject.name}: tokens per round, {how}")
    for number, question in enumerate(asked, 1):
        missing = [label for label in ledgers if not ledgers[label].find(question=question.name)]
        for label, row in trial.ask(question, missing):
            ledgers[label].add(question=question.name, kind=task(question.category), **row)
        console.print(f"{number}: {question.category} {question.name}", highlight=False)


def of_tasks(subject: model_pairs.Subject, count: int) -> dict[str, list[Question]]:
    """Returns the questions of each task, at most `count` of them spread over its classes; 0:
    all.
    """
    tasks: dict[str, list[list[Question]]] = {}
    for kind in subject.classes:
        tasks.setdefault(task(kind), []).append(subject.texts.some(kind, count or 1 << 20))
    # Of a task of several classes, one of each in turn.
    mixed = {name: list(in_turn(dict(enumerate(lists)))) for name, lists in tasks.items()}
    return {name: found[: count or None] for name, found in mixed.items()}


def in_turn(lists: dict[Any, list[Question]]) -> Iterator[Question]:
    """Yields the first of each list, the second of each, and so on."""
    for group in zip_longest(*lists.values()):
        yield from (question for question in group if question is not None)


def ordered(asked: list[Question], order: str) -> list[Question]:
    """Returns the questions task by task, or in an order that is drawn once and for all.

    Raises:
        InputError: if there is no such order.
    """
    if order == "grouped":
        return sorted(asked, key=lambda question: task(question.category))
    if order == "shuffled":
        return random.Random(0).sample(asked, len(asked))
    raise InputError(f"--order {order} is not there; give turns, grouped or shuffled")


class Trial:
    """Several methods that answer the same questions, one after the other.

    The memory of each goes from turn to turn and question to question, as in the paper, unless its
    row is cold. A run that goes on starts with empty memories.
    """

    def __init__(self, bench: Bench, methods: settings.Rows):
        self.bench, self.methods = bench, methods
        self._built: dict[str, Decoding] = {}
        self._memory: dict[str, Any] = {}
        self._outputs: dict[tuple[Any, int, bytes], dict[str, Array]] = {}

    def ask(self, question: Question, wanted: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields tokens and rounds of each turn, by each wanted method."""
        conversation = list(self.answered(question)) if wanted else []
        self._outputs.clear()
        few_programs()
        for label in wanted:
            if (one := self.decoding(label)) is None:
                continue
            tokens, rounds = [], []
            for prompts, limit, text in conversation:
                counted = self.count(label, one, prompts, limit, text)
                tokens.append(counted[0])
                rounds.append(counted[1])
            yield label, dict(tokens=tokens, rounds=rounds)

    def answered(self, question: Question) -> Iterator[tuple[Prompts, int, np.ndarray]]:
        """Yields each turn's prompt, the tokens of it that count, and what the target says."""
        said: list[str] = []
        for _ in question.turns:
            ids = self.bench.read(question, said)
            prompts = padded(ids)
            result = self.bench.plain(prompts, np.array([self.bench.new_tokens + DEEPEST]))
            written = result.tokens[0, : int(result.lengths[0])].tolist()
            limit = count_unlooped(np.array([*ids, *written[: self.bench.new_tokens]], np.int32))
            yield prompts, max(limit - len(ids), 1), np.array([*ids, *written], np.int32)
            said.append(self.bench.target.tokenizer.decode(written[: self.bench.new_tokens]))

    def decoding(self, label: str) -> Decoding | None:
        """Returns the method of a label; None where the target has none."""
        one = self.methods[label]
        if label not in self._built:
            try:
                built = one.make(self.bench.target)
            except (InputError, OSError) as reason:
                console.print(f"{label}: left out, {reason}")
                del self.methods[label]
                return None
            self._built[label] = self.bench.decoding(built)
        return self._built[label]

    def count(
        self, label: str, one: Decoding, prompts: Prompts, limit: int, text: np.ndarray
    ) -> tuple[int, int]:
        """Returns (tokens, rounds) up to the round that reaches the limit."""
        if self.methods[label].replayed:
            whole = np.zeros((1, prompts.tokens.shape[1] + self.bench.new_tokens + DEEPEST), int)
            whole[0, : len(text)] = text
            tokens = jnp.asarray(whole, jnp.int32)
            known = {"tokens": tokens} | self.outputs(one, tokens)
            one = replace(one, model=Replay(one.model.vocab_size), params=known)
        memory = None if self.methods[label].cold else self._memory.get(label)
        # The round that reaches the limit emits at most the tree's levels and one token.
        beyond = min(getattr(one.drafter, "depth", DEEPEST), DEEPEST)
        asked = np.array([limit])
        request = self.bench.request
        result = one.run(prompts, asked + beyond, asked, memory, eos=self.bench.eos, **request)
        self._memory[label] = result.drafter_state.inner
        histogram = jax.device_get(result.drafter_state.histogram)[0]
        return int(histogram @ np.arange(1, DEEPEST + 1)), int(histogram.sum())

    def outputs(self, one: Decoding, tokens: Int[Array, "1 T"]) -> dict[str, Array]:
        """Returns the target's outputs along a text: the states that a method's head reads (without
        a head a 0), and the likeliest tokens that a matrix reads.
        """
        size = one.drafter.drafter.k if isinstance(one.drafter, AcceptedAlone) else 0
        if one.drafter_params is None and not size:
            return {"hidden": jnp.zeros((1, 1, 1))}
        key = one.model, size, np.asarray(tokens).tobytes()
        if key not in self._outputs:
            seen = _observed(one.model, one.params, tokens, size)
            ranked = seen.distributions and {"likeliest": seen.distributions.tokens}
            self._outputs[key] = {"hidden": seen.hidden} | (ranked or {})
        return self._outputs[key]


_observed = jax.jit(observe, static_argnums=(0, 3))


def padded(ids: list[int]) -> Prompts:
    """Returns one prompt in an array of a length that others have too."""
    most = LENGTHS[-1]
    size = next((size for size in LENGTHS if size >= len(ids)), -(-len(ids) // most) * most)
    prompts = pad([ids])
    return prompts._replace(tokens=np.pad(prompts.tokens, ((0, 0), (0, size - len(ids)))))


if __name__ == "__main__":
    command(main)
