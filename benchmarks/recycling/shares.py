"""Fig. 4 of Token Recycling (Luo et al. 2024): where the time of a round goes."""

from collections.abc import Sequence
from functools import partial

import jax
from rich import box
from rich.table import Table

import jspec
from benchmarks.harness import console
from benchmarks.pieces import Piece, medians
from benchmarks.recycling.bench import Bench
from benchmarks.texts import pad
from jspec import round as rounds
from jspec import tree as trees
from jspec.cli.bench.questions import Question
from jspec.verify.schemes import COUPLED

PAPER = {"preprocess": 1.6, "retrieve": 1.6, "forward": 90.1, "verify": 5.2, "update": 1.5}
"""Percent of a round: Vicuna-7B on an A100."""


def shares(bench: Bench, question: Question, count: int = 12, repeats: int = 10) -> dict:
    """Seconds of each piece of a round, summed over `count` states that a decode passes through.

    Preprocess is the mask, which the forward makes too: its time is taken off the forward's.
    Update is that of the matrix, of the tokens, and of keys and values.
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
    # As in the loop, cache and matrix are written where they stand.
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
