"""Token Recycling's experiments (Luo et al. 2024): Table 1, its shuffled row, Figs. 3 and 4.

python -m benchmarks.recycling --out FILE                          # Table 1, by class of prompt
python -m benchmarks.recycling --out FILE --questions question.jsonl    # a file of Spec-Bench
python -m benchmarks.recycling --out FILE --nodes 16 --untimed     # equal budgets, counts alone
python -m benchmarks.recycling --out FILE --parts shuffled,breadth,depth,update,time
python -m benchmarks.recycling --out FILE --datastore STORE --tree TREE    # REST's row; a tree of
                                            # `benchmarks.recycling_tree` for the model itself

What is in FILE already is not run again: an interrupted run goes on with the next method.
"""

import hashlib
import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import round_pieces
from benchmarks.harness import console, headline, paired
from benchmarks.ledger import Ledger
from benchmarks.questions import Question, read, shared
from jspec import tree as trees
from jspec.drafters.draft_head import medusa
from jspec.methods import METHODS
from jspec.methods.device_defaults import lookahead
from jspec.models import load
from jspec.request import bucket
from jspec.training.distill import unlooped
from jspec.verify import rules
from jspec.verify.tree_verifier import TreeVerifier

PLAIN = "autoregressive"
TABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt lookup": ("prompt_lookup", {}),
    "suffix": ("suffix", {}),
    "Medusa": (
        "medusa",
        {"template": tuple(path for path in medusa.PUBLISHED.paths if len(path) <= 3)},
    ),
    "TR, published": ("token_recycling", {"shape": "published"}),
    "TR, measured": ("token_recycling", {"shape": "measured"}),
    "TR, dynamic": ("dynamic_token_recycling", {"num_speculative_tokens": 80}),
    "TR + suffix": ("token_recycling+suffix", {"num_speculative_tokens": 80}),
    "Lyanna + suffix": ("lyanna+suffix", {"num_speculative_tokens": 80}),
}
"""Rows of Table 1 beside Lookahead and REST: the method's name on the command line, and its
options."""
PUBLISHED = {"window": 7, "ngram": 5, "guesses": 7}
"""Lookahead's."""
OF_ONE_SIZE = ("Medusa", "Lyanna + suffix", "TR, published", "TR, measured")
"""Rows that are left out where all have the same number of nodes: a tree of 80, a head's own."""
_TREE = 32
"""Levels by which a verified tree may reach beyond the last token."""
_PARTS = ("table", "shuffled", "breadth", "depth", "update", "time")


Rows = dict[str, tuple[str, dict[str, Any]]]


def table(nodes: int | None, datastore: Path | None, tree: Path | None) -> Rows:
    """The rows of Table 1, each with its own number of nodes or all with the same."""
    found = {"lookahead": ("lookahead", PUBLISHED if nodes is None else lookahead(nodes)), **TABLE}
    if datastore is not None:
        where = {"datastore": str(datastore)}
        found[f"REST, {datastore.stem}"] = ("rest", where | {"num_speculative_tokens": 64})
        mixture = where | TABLE["TR + suffix"][1]
        found[f"TR + suffix + REST, {datastore.stem}"] = ("token_recycling+suffix+rest", mixture)
    if nodes is not None:
        found["TR"] = ("token_recycling", {})
        budget = {"num_speculative_tokens": nodes}
        found = {
            label: (method, options if method == "lookahead" else options | budget)
            for label, (method, options) in found.items()
            if label not in OF_ONE_SIZE
        }
    if tree is not None:
        paths = json.loads(tree.read_text("utf-8"))["template"]
        found[f"TR, {tree.stem}"] = ("token_recycling", {"template": tuple(map(tuple, paths))})
    return found


def told(options: dict[str, Any]) -> str:
    """The options in words, a file by its contents."""
    known = dict(options)
    if "datastore" in known:
        known["datastore"] = digest(Path(known["datastore"]))
    return json.dumps(known, sort_keys=True)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def rows(part: str, table: Rows) -> Rows:
    """What a part runs: by label, a method and its options."""
    match part:
        case "table":
            return table
        case "shuffled":
            return {"TR, published": TABLE["TR, published"]}
        case "breadth":
            ranks = (1, 2, 4, 8)
            return {
                f"TR, {k} ranks": ("token_recycling", {"k": k, "num_speculative_tokens": 80})
                for k in ranks
            }
        case "depth":
            published = jspec.TokenRecycling(8).template.paths
            return {
                f"TR, {depth} levels": (
                    "token_recycling",
                    {"template": tuple(path for path in published if len(path) <= depth)},
                )
                for depth in range(1, 7)
            }
        case "update":
            shape = {"shape": "published"}
            return {
                "TR, published": ("token_recycling", shape),
                "TR, prompt too": ("token_recycling", {**shape, "update_on_prefill": True}),
                "TR, cold": ("token_recycling", shape),
            }
    raise ValueError(f"no part {part!r}; there are {', '.join(_PARTS)}")


class Bench:
    """One target, its questions, and how a method answers them.

    An answer ends at an end token, or where the target begins to repeat itself: small models run
    into loops, which whoever copies text drafts without end. What the target writes by itself
    decides that, so it is the same for all methods.
    """

    def __init__(self, model: str, new_tokens: int, prompt_tokens: int, timed: bool, loops: bool):
        self.loaded = load(model)
        self.new_tokens, self.timed, self.loops = new_tokens, timed, loops
        self._limits: dict[tuple[int, ...], int] = {}
        context = self.loaded.model.context or 1 << 20
        self.longest = min(prompt_tokens, context - new_tokens - _TREE)
        if self.longest < 1:
            raise typer.BadParameter(
                f"--new-tokens {new_tokens} leaves no room for a prompt in a context of {context}; "
                f"ask for at most {context - _TREE - 1}"
            )

    def decode(self, ids: list[int], **options) -> jspec.Result:
        return jspec.decode(
            self.loaded.model, self.loaded.params, np.array([ids]),
            max_new_tokens=self.new_tokens, eos=self.loaded.eos or None, **options,
        )  # fmt: skip

    def read(self, question: Question, said: list[str]) -> list[int]:
        """The prompt of a turn: a conversation's end, with the question, or a text's beginning."""
        ids = self.loaded.tokenizer.encode(question.prompt(said)).ids
        return ids[-self.longest :] if question.chat else ids[: self.longest]

    def limit(self, ids: list[int]) -> int:
        """How many tokens the answer to these has."""
        if self.loops:
            return self.new_tokens
        if (known := tuple(ids)) not in self._limits:
            plain = self.decode(ids)
            text = [*ids, *plain.tokens[0, : int(plain.lengths[0])].tolist()]
            self._limits[known] = max(unlooped(np.array(text, np.int32)) - len(ids), 1)
        return self._limits[known]

    def answers(
        self, drafter: jspec.Drafter, weights: Any, questions: Iterable[Question], cold: bool
    ) -> Iterable[dict[str, Any]]:
        """One row a question. With times, plain decoding takes its turns and is compared with.

        The drafter is hot: its memory goes from turn to turn and question to question. What
        compiles does so before its time is taken.
        """
        memory, compiled = None, set()
        for question in questions:
            said: list[str] = []
            row: dict[str, Any] = dict(question=question.name, kind=question.kind, tokens=0)
            row |= dict(steps=0, seconds=0.0, plain_seconds=0.0)
            for _ in question.turns:
                ids = self.read(question, said)
                limits = np.array([self.limit(ids)])
                how: dict[str, Any] = dict(drafter=drafter, drafter_params=weights)
                if not cold:
                    how["drafter_state"] = memory
                if self.timed and (size := bucket(len(ids), 1)) not in compiled:
                    for way in (how, {}):
                        jax.block_until_ready(self.decode(ids, limits=np.zeros(1, int), **way))
                    compiled.add(size)
                begin = time.perf_counter()
                result = jax.block_until_ready(self.decode(ids, limits=limits, **how))
                row["seconds"] += time.perf_counter() - begin
                if self.timed:
                    begin = time.perf_counter()
                    plain = jax.block_until_ready(self.decode(ids, limits=limits))
                    row["plain_seconds"] += time.perf_counter() - begin
                    row["same"] = row.get("same", True) and (
                        plain.tokens.tolist() == result.tokens.tolist()
                    )
                memory = result.drafter_state
                count = int(result.lengths[0])
                row["tokens"] += count
                row["steps"] += int(result.stats.num_rounds[0])
                said.append(self.loaded.tokenizer.decode(result.tokens[0, :count].tolist()))
            yield row


def summary(found: list[dict[str, Any]]) -> tuple[float, float, float]:
    """(MAT, tokens per second, speed-up) of a class, averaged as Spec-Bench does: acceptance over
    all steps; speed as the mean over questions, and speed-up as the ratio of two such means.
    """
    length = sum(row["tokens"] for row in found) / sum(row["steps"] for row in found)
    if not found[0]["plain_seconds"]:
        return length, float("nan"), float("nan")
    speed = np.mean([row["tokens"] / row["seconds"] for row in found])
    plain = np.mean([row["tokens"] / row["plain_seconds"] for row in found])
    return length, float(speed), float(speed / plain)


def shares(bench: Bench, question: Question, rounds: int = 12, repeats: int = 10) -> dict:
    """Fig. 4: seconds of each piece of a round, on the states that a decode passes through."""
    model, params = bench.loaded.model, bench.loaded.params
    drafter = jspec.TokenRecycling(model.vocab_size)
    ids = bench.read(question, [])
    state = jspec.prefill(
        model, params, np.array([ids]), drafter=drafter, max_new_tokens=bench.new_tokens
    )
    walk = TreeVerifier(rules.coupled)
    retrieve = jax.jit(lambda memory, frame: drafter.draft(None, memory, frame)[0])
    prepare = jax.jit(trees.ancestors)
    forward = jax.jit(
        lambda params, tree, frame, cache: round_pieces.score(model, params, tree, frame, cache)
    )
    verify = jax.jit(walk.verdict)
    update = jax.jit(lambda memory, lesson: drafter.update(None, memory, lesson))
    total: dict[str, float] = {}
    for _ in range(rounds):
        if bool(state.done.all()):
            break
        frame = round_pieces.frame(state)
        tree = retrieve(state.drafter_state, frame)
        output = forward(params, tree, frame, state.cache)
        verdict = verify(tree, output.logits, frame)
        lesson = round_pieces.feedback(tree, output, verdict, frame)
        pieces = {
            "retrieve": lambda s=state, f=frame: retrieve(s.draft, f),
            "prepare": lambda t=tree: prepare(t),
            "forward": lambda s=state, t=tree, f=frame: forward(params, t, f, s.cache),
            "verify": lambda t=tree, o=output, f=frame: verify(t, o.logits, f),
            "update": lambda s=state, lesson=lesson: update(s.draft, lesson),
        }
        for name, seconds in paired(pieces, repeats).items():
            total[name] = total.get(name, 0.0) + float(np.median(seconds))
        state = jspec.step(model, params, state, drafter=drafter)
    return total


def main(
    out: Annotated[Path | None, typer.Option(help="rows, and where to go on from")] = None,
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    parts: Annotated[str, typer.Option(help=f"comma-separated, of {', '.join(_PARTS)}")] = "table",
    only: Annotated[str | None, typer.Option(help="labels of rows, separated by ;")] = None,
    questions: Annotated[Path | None, typer.Option(help="a file in Spec-Bench's schema")] = None,
    count: Annotated[int, typer.Option(min=0, help="per class; 0: all questions of a file")] = 4,
    nodes: Annotated[int | None, typer.Option(min=1, help="drafted nodes, for all alike")] = None,
    datastore: Annotated[Path | None, typer.Option(help="of jspec datastore, for REST")] = None,
    tree: Annotated[Path | None, typer.Option(help="of benchmarks.recycling_tree")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="most that are read")] = 48,
    new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    timed: Annotated[bool, typer.Option("--timed/--untimed")] = True,
    loops: Annotated[bool, typer.Option(help="go on where a text only repeats itself")] = False,
    seed: Annotated[int, typer.Option(help="of the shuffled order")] = 0,
) -> None:
    """Greedy, batch 1; a method that has no trained head or datastore here is left out."""
    bench = Bench(model, new_tokens, prompt_tokens, timed, loops)
    asked = shared(max(count, 1)) if questions is None else read(questions, count or None)
    ledger, known = Ledger(out), table(nodes, datastore, tree)
    about = dict(
        bench="recycling", model=model, backend=jax.default_backend(), nodes=nodes,
        new_tokens=new_tokens, prompt_tokens=prompt_tokens, timed=timed, loops=loops, count=count,
        questions=None if questions is None else digest(questions),
    )  # fmt: skip
    for part in parts.split(","):
        headline(f"{model}: {part}, greedy, batch 1, {new_tokens} new tokens a turn")
        if part == "time":
            _show_shares(shares(bench, asked[0]))
            continue
        order = list(asked)
        if part == "shuffled":
            random.Random(seed).shuffle(order)
        answered: dict[str, list[dict[str, Any]]] = {}
        for label, (method, options) in rows(part, known).items():
            if only is not None and label not in only.split(";"):
                continue
            this = about | dict(part=part, method=label, seed=seed, options=told(options))
            if not ledger.find(**this):
                try:
                    made = METHODS[method].build(bench.loaded, **options)[1:]
                except (ValueError, OSError) as reason:
                    console.print(f"{label}: left out, {reason}")
                    continue
                found = list(bench.answers(*made, order, label.endswith("cold")))
                ledger.add(**this, rows=found)
            answered[label] = ledger.find(**this)[-1]["rows"]
        _show(answered, timed)


def _show(answered: dict[str, list[dict[str, Any]]], timed: bool) -> None:
    if not answered:
        return
    kinds = list(dict.fromkeys(row["kind"] for row in next(iter(answered.values()))))
    what = "MAT, tokens/s, speed-up" if timed else "MAT"
    table = Table("method", *(f"{kind}\n{what}" for kind in kinds), f"all\n{what}")

    def cell(found):
        length, speed, gain = summary(found)
        return f"{length:.2f}, {speed:.0f}, {gain:.2f}x" if timed else f"{length:.2f}"

    if timed:
        speeds = [
            np.mean([row["tokens"] / row["plain_seconds"] for row in found if row["kind"] == kind])
            for kind in kinds
            for found in [next(iter(answered.values()))]
        ]
        table.add_row(PLAIN, *(f"1.00, {speed:.0f}, 1.00x" for speed in speeds), "1.00")
    for label, found in answered.items():
        by_kind = [[row for row in found if row["kind"] == kind] for kind in kinds]
        table.add_row(label, *map(cell, by_kind), cell(found))
        if differing := [row["question"] for row in found if not row.get("same", True)]:
            console.print(f"{label}: other tokens than plain decoding in {differing}")
    console.print(table)
    for label, gains in ahead(answered).items():
        told = ", ".join(f"{kind} {gain:+.1%}" for kind, gain in zip(kinds, gains, strict=True))
        console.print(f"{label}, MAT over the best single method's: {told}")


def ahead(answered: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """By mixture and class, how far its MAT is ahead of the best method that is no mixture."""
    kinds = dict.fromkeys(row["kind"] for found in answered.values() for row in found)
    length = {
        label: [summary([row for row in found if row["kind"] == kind])[0] for kind in kinds]
        for label, found in answered.items()
    }
    single = [found for label, found in length.items() if "+" not in label]
    if not single:
        return {}
    best = np.max(single, axis=0)
    mixed = {label: found for label, found in length.items() if "+" in label}
    return {label: (np.array(found) / best - 1).tolist() for label, found in mixed.items()}


def _show_shares(total: dict[str, float]) -> None:
    table = Table("piece", "share of a round")
    whole = sum(total.values())
    for name, seconds in total.items():
        table.add_row(name, f"{seconds / whole:.1%}")
    console.print(table)
    console.print("The forward prepares its mask itself: that piece is in it once more.")


if __name__ == "__main__":
    typer.run(main)
