"""Fig. 4 of DySpec: where the time of a round goes.

python -m benchmarks.dyspec.components --out components.jsonl

The pieces of a round, each compiled by itself and run on the very states that decoding passes
through; and the whole round, as `decode` compiles it, on the same states.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.dyspec.contenders import LEARNING, Workload, drafter
from benchmarks.dyspec.counts import DRAFT_TEMPERATURE
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.pieces import Piece, medians
from jspec import round as rounds
from jspec.drafters.draft_model.draft_model import DraftModel
from jspec.drafters.draft_model.model_scorer import NUM_FIRST, ModelScorer
from jspec.memory import TreeKV
from jspec.protocols import CausalLM
from jspec.types import Frame, PyTree, State, Tree, Verdict

PIECES = ("draft forwards", "construction", "target forward", "verification", "commit")


METHODS = "dyspec,coupled_tree,sequoia,speculative_decoding"


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = "stories,books,speeches",
    budget: Annotated[int, typer.Option(min=1, help="drafted nodes")] = 64,
    methods: Annotated[str, typer.Option(help="comma-separated")] = METHODS,
    temperature: Annotated[float, typer.Option(min=0, help="the target's")] = 0.6,
    prompt_tokens: options.PromptTokens = 128,
    new_tokens: options.NewTokens = 128,
    num_rounds: Annotated[int, typer.Option("--rounds", min=1, help="that are timed")] = 12,
    out: Annotated[
        Path | None, typer.Option(help="JSON lines: what is there is not measured again")
    ] = None,
) -> None:
    """Measures what the file lacks at batch 1, and prints the table."""
    ledger, names = Ledger(out), methods.split(",")
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes)
    work = Workload(pair, 1, 1, prompt_tokens, new_tokens)
    headline(f"{work.pair.name}: a round's parts at {budget} nodes, batch 1, T {temperature:g}")
    about = dict(
        bench="components", **work.pair.about, budget=budget, temperature=temperature,
        rounds=num_rounds,
    )  # fmt: skip
    for name in names:
        if not ledger.find(**about, method=name):
            method = drafter(name, work, budget, temperature, DRAFT_TEMPERATURE)
            times = Pieces(work, method, name in LEARNING, temperature).measure(num_rounds)
            ledger.add(**about, method=name, **times)
    rows = {name: ledger.find(**about, method=name)[-1] for name in names}
    shown = Table("ms per round", *PIECES, "sum", "whole", "construction + verification", "levels")
    for name, row in rows.items():
        total = sum(row[piece] for piece in PIECES)
        own = row["construction"] + row["verification"]
        shown.add_row(
            name,
            *(f"{1e3 * row[piece]:.2f}" for piece in PIECES),
            f"{1e3 * total:.2f}",
            f"{1e3 * row['whole']:.2f}",
            f"{1e3 * own:.2f}: {own / row['whole']:.0%}",
            f"{row['levels']:.1f}",
        )
    console.print(shown)
    console.print(
        "Medians over rounds of one text. Construction is the whole draft less its forward passes, "
        "timed alone over as many levels. Each piece pays for its own start and for arrays that "
        "the whole never writes out."
    )


class Pieces:
    """One method's round, cut up."""

    def __init__(self, work: Workload, method: DraftModel, learning: bool, temperature: float):
        self.work, self.method, self.temperature = work, method, temperature
        self.learning = learning
        self.draft = jax.jit(method.draft)
        self.forwards = jax.jit(self._forwards)
        self.score = jax.jit(self._score)
        self.verdict = jax.jit(self._verdict)
        # As in the loop, the caches are written in place.
        self.commit = jax.jit(self._commit, donate_argnums=(0, 1))

    @property
    def target(self) -> tuple[CausalLM, PyTree]:
        return self.work.pair.target.model, self.work.pair.target.params

    @property
    def weights(self) -> PyTree:
        return self.work.pair.draft.params

    def measure(self, num_rounds: int) -> dict[str, float]:
        """Returns median seconds of each piece and of the whole, without the first round."""
        prompt = self.work.prompts(-1).take([0])
        learnt = None
        if self.learning:
            learnt = self.work.decoding(self.method, self.weights).run(
                prompt, np.array([self.work.new_tokens]), key=1,
                sampling=jspec.Sampling(temperature=self.temperature),
            ).drafter_state.inner  # fmt: skip
        model, params = self.target
        # Every round may emit a whole path, and the limit must not end the text.
        most = (num_rounds + 1) * (self.method.depth + 1)
        if model.context is not None:
            most = min(most, model.context - prompt.tokens.shape[1])
        state = jspec.prefill(
            model, params, *prompt, drafter=self.method, drafter_params=self.weights,
            drafter_state=learnt, max_new_tokens=most,
            sampling=jspec.Sampling(temperature=self.temperature), key=0,
        )  # fmt: skip
        seen: list[dict[str, float]] = []
        while len(seen) <= num_rounds and not state.done.all():
            seen.append(self.round(state))
            state = jspec.step(
                model, params, state, drafter=self.method, drafter_params=self.weights
            )
        return {name: float(np.median([times[name] for times in seen[1:]])) for name in seen[0]}

    def round(self, state: State, repeats: int = 3) -> dict[str, float]:
        """Returns the pieces of the round that starts from a state, in turn."""
        model, params = self.target
        frame = rounds.frame(state)
        drawn, aux = jax.block_until_ready(self.draft(self.weights, state.drafter_state, frame))
        levels = self.levels(aux.kv)
        tree = rounds.sanitize(drawn, frame.root, model.vocab_size)
        output = self.score(params, tree, frame, state.memory)
        verdict = self.verdict(drawn, output.logits, frame)

        def whole(state: State) -> State:
            return jspec.step(
                model, params, state, drafter=self.method, drafter_params=self.weights
            )

        pieces = {
            "draft": Piece(self.draft, (self.weights, state.drafter_state, frame)),
            "draft forwards": Piece(
                self.forwards, (self.weights, state.drafter_state, frame, levels)
            ),
            "target forward": Piece(self.score, (params, tree, frame, state.memory)),
            "verification": Piece(self.verdict, (drawn, output.logits, frame)),
            "commit": Piece(self.commit, (state, aux, tree, output, verdict), donates=True),
            "whole": Piece(whole, (state,), donates=True),
        }
        seconds = medians(pieces, repeats)
        seconds["construction"] = seconds["draft"] - seconds["draft forwards"]
        return seconds | {"levels": float(levels)}

    def levels(self, kv: TreeKV) -> jax.Array:
        """Counts forward passes of the last draft, the root's included: levels that left keys."""
        below = kv.keys[0][0, :, 2:].any((0, 2)).reshape(self.method.depth - 1, -1)
        return 1 + below.any(-1).sum().astype(jnp.int32)

    def _scorer(self, params: PyTree, state: PyTree, frame: Frame) -> ModelScorer:
        size = NUM_FIRST + self.method.num_scored
        return ModelScorer(self.method.model, params, state.cache, state.previous, frame, size)

    def _forwards(self, params: PyTree, state: PyTree, frame: Frame, levels: jax.Array):
        """Returns the draft's passes and cache growth; tokens: the last level's likeliest."""
        scorer = self._scorer(params, state, frame)
        level = scorer.root()
        width = self.method.num_scored // max(1, self.method.depth - 1)
        best = level.logits.argmax(-1).astype(jnp.int32)
        tokens = jnp.broadcast_to(best, (1, width))
        seen = jnp.broadcast_to(level.inherited, (1, width, level.inherited.shape[-1]))

        def deeper(depth, carry):
            tokens, seen, kv = carry
            below = scorer.below(depth, 2 + (depth - 1) * width, tokens, seen, kv)
            # All logits have to be there, as they are for a draw.
            likeliest = below.logits.argmax(-1).astype(jnp.int32)
            return likeliest, below.inherited, below.kv

        return jax.lax.fori_loop(1, levels, deeper, (tokens, seen, level.kv))

    def _score(self, params: PyTree, tree: Tree, frame: Frame, cache: jspec.KVCache):
        return rounds.score(self.target[0], params, tree, frame, cache)

    def _verdict(self, tree: Tree, logits: jax.Array, frame: Frame) -> Verdict:
        tree = rounds.sanitize(tree, frame.root, self.target[0].vocab_size)
        return self.method.verifier.verdict(tree, logits, frame)

    def _commit(self, state: State, aux: PyTree, tree: Tree, output, verdict: Verdict):
        """Returns the state after the round: both caches, and what the method learns."""
        after, feedback = rounds.commit(state, tree, output, verdict)
        memory = self.target[0].commit(
            state.memory, output.tentative, verdict.path, feedback.counts
        )
        after = replace(after, memory=memory)
        learnt = self.method.update(self.weights, state.drafter_state, aux, feedback)
        return replace(after, drafter_state=learnt)


if __name__ == "__main__":
    command(main)
