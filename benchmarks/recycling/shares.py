"""Fig. 4 of Token Recycling (Luo et al. 2024): where the time of a round goes."""

from functools import partial

import jax
import numpy as np
from rich.table import Table

import jspec
from benchmarks.harness import console, paired
from benchmarks.recycling.bench import Bench
from benchmarks.recycling.questions import Question
from jspec import round as rounds
from jspec import tree as trees
from jspec.verify.schemes import COUPLED


def shares(bench: Bench, question: Question, count: int = 12, repeats: int = 10) -> dict:
    """Seconds of each piece of a round, summed over `count` states that a decode passes through."""
    model, params = bench.target.model, bench.target.params
    drafter = jspec.TokenRecycling(model.vocab_size)
    prompt = np.array([bench.read(question, [])])
    state = jspec.prefill(model, params, prompt, drafter=drafter, max_new_tokens=bench.new_tokens)

    def draft(memory, frame):
        tree, _ = drafter.draft(None, memory, frame)
        return rounds.admit(tree, frame.root, model.vocab_size)

    retrieve = jax.jit(draft)
    prepare = jax.jit(trees.ancestors)
    forward = jax.jit(partial(rounds.score, model))
    verify = jax.jit(COUPLED.verifier.verdict)
    settle = jax.jit(rounds.settle)
    update = jax.jit(lambda memory, feedback: drafter.update(None, memory, feedback))
    total: dict[str, float] = {}
    for _ in range(count):
        if bool(state.done.all()):
            break
        frame = rounds.frame(state)
        tree = retrieve(state.drafter_state, frame)
        output = forward(params, tree, frame, state.cache)
        verdict = verify(tree, output.logits, frame)
        _, feedback = settle(state, tree, output, verdict)
        pieces = {
            "retrieve": lambda s=state, f=frame: retrieve(s.drafter_state, f),
            "prepare": lambda t=tree: prepare(t),
            "forward": lambda s=state, t=tree, f=frame: forward(params, t, f, s.cache),
            "verify": lambda t=tree, o=output, f=frame: verify(t, o.logits, f),
            "update": lambda s=state, feedback=feedback: update(s.drafter_state, feedback),
        }
        for name, seconds in paired(pieces, repeats).items():
            total[name] = total.get(name, 0.0) + float(np.median(seconds))
        state = jspec.step(model, params, state, drafter=drafter)
    return total


def show(total: dict[str, float]) -> None:
    """Prints each piece's share."""
    table = Table("piece", "share of a round")
    whole = sum(total.values())
    for name, seconds in total.items():
        table.add_row(name, f"{seconds / whole:.1%}")
    console.print(table)
    console.print("The forward prepares its mask itself: that piece is in it once more.")
