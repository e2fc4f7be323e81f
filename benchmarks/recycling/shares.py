"""Fig. 4 of Token Recycling (Luo et al. 2024): where the time of a round goes.

python -m benchmarks.recycling.shares --count 2 --new-tokens 24 --out FILE
"""

from collections.abc import Sequence
from functools import partial

import jax
from rich import box
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.pieces import Piece, medians
from benchmarks.recycling.bench import Bench
from benchmarks.recycling.counts import of_tasks
from benchmarks.recycling.wordings import wording
from benchmarks.texts import pad
from jspec import round as rounds
from jspec import tree as trees
from jspec.cli.bench.questions import Question
from jspec.verify.schemes import COUPLED

PAPER = {"preprocess": 1.6, "retrieve": 1.6, "forward": 90.1, "verify": 5.2, "update": 1.5}
"""Percent of a round: Vicuna-7B on an A100."""


def main(
    out: options.Out = None,
    model: options.Model = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    count: options.Count = 4,
    prompt_tokens: options.PromptTokens = 48,
    new_tokens: options.NewTokens = 128,
) -> None:
    """Times the pieces on each question, greedily at batch 1, and prints their shares."""
    subject = model_pairs.subject(model, questions, prompts, classes)
    words = wording(subject.target, subject.texts)
    bench = Bench(subject.target, words, new_tokens, prompt_tokens)
    setting = dict(
        bench="recycling", part="time", **subject.about, backend=jax.default_backend(),
        new_tokens=new_tokens, prompt_tokens=prompt_tokens, count=count,
        classes=list(subject.classes),
    )  # fmt: skip
    ledger = Ledger(out, setting)
    headline(f"{subject.name}: shares of a round, {new_tokens} new tokens")
    for question in (one for asked in of_tasks(subject, count).values() for one in asked):
        if not ledger.find(question=question.name):
            ledger.add(question=question.name, pieces=shares(bench, question))
    show(ledger.rows)


def shares(bench: Bench, question: Question, count: int = 12, repeats: int = 10) -> dict:
    """Returns seconds of each piece of a round, summed over `count` states of a decode.

    Preprocess is the mask, which the forward pass makes too: its time is taken off the forward
    pass's. Update is that of the matrix, of the tokens, and of keys and values.
    """
    model, params = bench.target.model, bench.target.params
    drafter = jspec.TokenRecycling(model.vocab_size)
    prompts = pad([bench.read(question, [])])
    state = jspec.prefill(
        model, params, prompts.tokens, drafter=drafter, max_new_tokens=bench.new_tokens
    )

    def draft(memory, frame):
        tree, _ = drafter.draft(None, memory, frame)
        return rounds.sanitize(tree, frame.root, model.vocab_size)

    def commit(state, tree, output, verdict):
        after, feedback = rounds.commit(state, tree, output, verdict)
        memory = model.commit(state.memory, output.tentative, verdict.path, feedback.counts)
        learnt = drafter.update(None, state.drafter_state, None, feedback)
        return after.replace(memory=memory, drafter_state=learnt)

    retrieve = jax.jit(draft)
    prepare = jax.jit(trees.ancestors)
    forward = jax.jit(partial(rounds.score, model))
    verify = jax.jit(COUPLED.verifier.verdict)
    # As in the loop, cache and matrix are written in place.
    update = jax.jit(commit, donate_argnums=0)
    total: dict[str, float] = {}
    for _ in range(count):
        if bool(state.done.all()):
            break
        frame = rounds.frame(state)
        tree = retrieve(state.drafter_state, frame)
        output = forward(params, tree, frame, state.memory)
        verdict = verify(tree, output.logits, frame)
        pieces = {
            "preprocess": Piece(prepare, (tree,)),
            "retrieve": Piece(retrieve, (state.drafter_state, frame)),
            "forward": Piece(forward, (params, tree, frame, state.memory)),
            "verify": Piece(verify, (tree, output.logits, frame)),
            "update": Piece(update, (state, tree, output, verdict), donates=True),
        }
        seconds = medians(pieces, repeats)
        seconds["forward"] -= seconds["preprocess"]
        for name, taken in seconds.items():
            total[name] = total.get(name, 0.0) + taken
        state = jspec.step(model, params, state, drafter=drafter)
    return total


def show(rows: Sequence[dict]) -> None:
    """Prints each piece's share, the mean over questions."""
    table = Table("piece", "share of a round", "the paper", box=box.MARKDOWN)
    for name, told in PAPER.items():
        shares = [row["pieces"][name] / sum(row["pieces"].values()) for row in rows]
        table.add_row(name, f"{sum(shares) / len(shares):.1%}", f"{told}%")
    console.print(table)


if __name__ == "__main__":
    command(main)
