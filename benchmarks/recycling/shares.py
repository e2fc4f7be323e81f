"""Fig. 4 of Token Recycling (Luo et al. 2024): where the time of a round goes."""

import jax
import numpy as np
from rich.table import Table

import jspec
from benchmarks import round_pieces
from benchmarks.harness import console, paired
from benchmarks.recycling.bench import Bench
from benchmarks.recycling.questions import Question
from jspec import tree as trees
from jspec.verify import rules
from jspec.verify.tree_verifier import TreeVerifier


def shares(bench: Bench, question: Question, rounds: int = 12, repeats: int = 10) -> dict:
    """Seconds of each piece of a round, on the states that a decode passes through."""
    model, params = bench.target.model, bench.target.params
    drafter = jspec.TokenRecycling(model.vocab_size)
    prompt = np.array([bench.read(question, [])])
    state = jspec.prefill(model, params, prompt, drafter=drafter, max_new_tokens=bench.new_tokens)
    retrieve = jax.jit(lambda memory, frame: drafter.draft(None, memory, frame)[0])
    prepare = jax.jit(trees.ancestors)
    forward = jax.jit(
        lambda params, tree, frame, cache: round_pieces.score(model, params, tree, frame, cache)
    )
    verify = jax.jit(TreeVerifier(rules.coupled).verdict)
    update = jax.jit(lambda memory, feedback: drafter.update(None, memory, feedback))
    total: dict[str, float] = {}
    for _ in range(rounds):
        if bool(state.done.all()):
            break
        frame = round_pieces.frame(state)
        tree = retrieve(state.draft, frame)
        output = forward(params, tree, frame, state.cache)
        verdict = verify(tree, output.logits, frame)
        feedback = round_pieces.feedback(tree, output, verdict, frame)
        pieces = {
            "retrieve": lambda s=state, f=frame: retrieve(s.draft, f),
            "prepare": lambda t=tree: prepare(t),
            "forward": lambda s=state, t=tree, f=frame: forward(params, t, f, s.cache),
            "verify": lambda t=tree, o=output, f=frame: verify(t, o.logits, f),
            "update": lambda s=state, feedback=feedback: update(s.draft, feedback),
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
