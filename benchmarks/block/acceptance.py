"""What knowing the noise is worth: one block head, its tree ranked by the noise and without it.

python -m benchmarks.block.acceptance --head RUN/head --out acceptance.jsonl
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, record
from benchmarks.whole_rounds import Decoding
from jspec.drafters.contrib.block_probabilities import BlockDistributions
from jspec.drafters.draft_head.block import BlockDrafter, BlockState
from jspec.drafters.draft_head.eagle import EAGLE2
from jspec.models import heads
from jspec.protocols import Drafter
from jspec.types import Feedback, Frame, PyTree, Tree


@dataclass(frozen=True)
class Unranked(BlockDrafter):
    """The tree of the head's likeliest paths, whatever the noise is: DDTree's and JetSpec's."""

    def draft(
        self, params: PyTree, state: BlockState, frame: Frame
    ) -> tuple[Tree, BlockDistributions]:
        return super().draft(params, state, replace(frame, sampling=None))


@dataclass(frozen=True)
class Independent(BlockDrafter):
    """Draws without replacement from the head's distributions, with a noise that is not the
    target's.
    """

    def draft(
        self, params: PyTree, state: BlockState, frame: Frame
    ) -> tuple[Tree, BlockDistributions]:
        own = jax.vmap(lambda key: jax.random.fold_in(key, 2**31))(frame.keys)
        return super().draft(params, state, replace(frame, keys=own))

    def update(
        self, params: PyTree, state: BlockState, aux: BlockDistributions | None, feedback: Feedback
    ) -> BlockState:
        # What is learnt would be to give this noise no weight.
        return replace(super().update(params, state, aux, feedback), weights=state.weights)


KINDS = {
    "ranked by the noise": BlockDrafter,
    "likeliest paths": Unranked,
    "drawn independently": Independent,
}


def main(
    model: options.Model = None,
    head: options.Head = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    nodes: Annotated[str, typer.Option(help="drafted nodes, comma-separated")] = "7,15,63",
    temperatures: Annotated[str, typer.Option(help="comma-separated, 0 the first")] = "0,0.6,1",
    count: options.Count = 8,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 96,
    candidates: Annotated[int, typer.Option(min=8, help="tokens of a level to choose from")] = 32,
    eagle: Annotated[bool, typer.Option(help="EAGLE-2 with its bundled head beside it")] = True,
    out: options.Out = None,
) -> None:
    """Tokens per round of the same prompts; all trees are verified by the coupled rule."""
    subject = model_pairs.subject(model, questions, prompts, classes)
    asked = subject.of_all_classes(count, prompt_tokens)
    named = head or heads.find("block", subject.target)
    warm = [float(one) for one in temperatures.split(",")]
    loaded = heads.load(named, subject.target, only="block")
    contenders: dict[str, tuple[Any, Callable[[int], Drafter]]] = {
        name: (
            loaded,
            lambda size, kind=kind: kind(
                loaded.head, size, beam=_beam(size), num_candidates=candidates
            ),
        )
        for name, kind in KINDS.items()
    }
    if eagle:
        other = heads.load(heads.find("eagle", subject.target), subject.target)
        contenders["EAGLE-2, sharpness 3"] = (
            other,
            lambda size: EAGLE2(other.head, size, 8, _beam(size), sharpness=3.0),
        )
    headline(
        f"{named}: {loaded.head.num_slots} tokens a block, {asked.count} prompts of "
        f"{prompt_tokens} tokens, {new_tokens} new ones each, in one batch"
    )
    table = Table(
        "nodes", "tree", *(f"T {one:g}" for one in warm), "kept", title="tokens per round"
    )
    for size in map(int, nodes.split(",")):
        for name, (held, make) in contenders.items():
            found = []
            for temperature in warm:
                one = Decoding(
                    held.target.model, subject.target.params, make(size), held.params, new_tokens
                )
                counted = one.count(asked, sampling=jspec.Sampling(temperature), key=0)
                tokens, rounds = int(counted.tokens.sum()), int(counted.rounds.sum())
                found.append(tokens / rounds)
                row = {"bench": "block_acceptance", **subject.about, "nodes": size, "tree": name}
                more = {
                    "head": named,
                    "temperature": temperature,
                    "tokens": tokens,
                    "rounds": rounds,
                }
                record(out, row | more | {"histogram": counted.histogram.sum(0).tolist()})
            kept = f"{found[-1] / found[0]:.0%}"
            table.add_row(str(size), name, *(f"{mean:.2f}" for mean in found), kept)
    console.print(table)
    console.print(f"kept: of the tokens per round at T {warm[0]:g}, at T {warm[-1]:g}.")


def _beam(nodes: int) -> int:
    return 4 if nodes < 32 else 8


if __name__ == "__main__":
    command(main)
