"""What a low-rank candidate head keeps: tokens per round and its time, beside hot tokens.

python -m benchmarks.block.candidates --model smollm2-135m --questions question.jsonl --out FILE
"""

from dataclasses import replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich import box
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.block.latency import draft
from benchmarks.harness import command, console, headline, paired
from benchmarks.ledger import Ledger
from benchmarks.model_pairs import Subject
from benchmarks.whole_rounds import Decoding
from jspec.drafters.draft_head.block import BlockDrafter
from jspec.models import heads
from jspec.types import PyTree

_LONGEST = 128
"""Tokens of a text whose states are taken."""
_PARTS = 8
"""Of the states: scores of all tokens are large."""


def main(
    model: options.Model = None,
    head: options.Head = None,
    trained: Annotated[
        str | None, typer.Option(help="The same head after `jspec train candidates`.")
    ] = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    ranks: Annotated[str, typer.Option(help="Of the product, comma-separated.")] = "64,128",
    candidates: Annotated[str, typer.Option(help="Tokens, comma-separated.")] = "256",
    nodes: Annotated[int, typer.Option(min=1, help="Drafted nodes.")] = 15,
    temperatures: Annotated[str, typer.Option(help="Comma-separated.")] = "0,1",
    count: options.Count = 1,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 64,
    repeats: Annotated[int, typer.Option(min=0, help="Times that each is timed; 0: none.")] = 10,
    out: options.Out = None,
) -> None:
    """Scores the same head's states in three ways: all tokens, the hot ones, candidates."""
    subject = model_pairs.subject(model, questions, prompts, classes, scan_layers=True)
    named = head or heads.find("block", subject.target)
    loaded = heads.load(named, subject.target, only="block")
    asked = subject.of_all_classes(count, prompt_tokens)
    warm = [float(one) for one in temperatures.split(",")]
    sizes = [(int(r), int(k)) for r in ranks.split(",") for k in candidates.split(",")]
    ledger = Ledger(out)
    about: dict[str, Any] = dict(
        bench="candidates", **subject.about, head=named, trained=trained, nodes=nodes, count=count,
        prompt_tokens=prompt_tokens, new_tokens=new_tokens,
    )  # fmt: skip
    headline(
        f"{named}: {asked.count} prompts, {new_tokens} tokens each, {nodes} nodes a round, of "
        f"{subject.target.model.vocab_size:,} tokens"
    )
    drafts, scores, rows, tops = {}, {}, [], {}
    states = (1, loaded.head.num_slots, loaded.head.hidden_size)
    asked_states, seen = final_states(subject, count, prompt_tokens)
    ways = contenders(loaded.head, loaded.params, sizes, seen)
    if trained is not None:
        later = heads.load(trained, subject.target, only="block")
        config = later.head.config
        name = f"{config.num_candidates} candidates of rank {config.candidate_rank}, trained"
        ways.append((name, later.head, later.params))
    hidden = np.random.default_rng(0).normal(size=states)
    for name, module, params in ways:
        drafter = BlockDrafter(module, nodes)
        tops[name] = likeliest(module, params, asked_states)
        for temperature in warm:
            one = dict(about, scored=name, temperature=temperature)
            if not ledger.find(**one):
                with console.status(f"{name}, T {temperature:g}"):
                    made = Decoding(
                        loaded.target.model, subject.target.params, drafter, params, new_tokens
                    )
                    sampling = jspec.Sampling(temperature)
                    found = made.count(asked, sampling=sampling, key=0)
                ledger.add(**one, tokens=found.tokens.tolist(), rounds=found.rounds.tolist())
            rows.append(ledger.find(**one)[-1])
        drafts[name] = draft(drafter, params, module.features, module.vocab_size, 128)
        scores[name] = scored(module, params, jnp.asarray(hidden, jnp.float32))
    times = [{}, {}] if not repeats else [medians(runs, repeats) for runs in (drafts, scores)]
    every = next(iter(tops.values()))
    found = {name: float(np.mean(top == every)) for name, top in tops.items()}
    console.print(table(found, rows, warm, *times))
    console.print(
        f"found: of {len(every)} states of the target in the prompts, the share whose likeliest "
        f"token is scored; the factors are of {len(seen)} states in other prompts."
    )
    ledger.add(**about, found=found, ms=times[0], score_ms=times[1])


def final_states(subject: Subject, count: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """The target's states in the prompts that are asked, and in as many others of each class."""
    both = subject.of_all_classes(2 * count, tokens)
    texts = jnp.asarray(both.tokens[:, :_LONGEST])
    places = jnp.broadcast_to(jnp.arange(texts.shape[1]), texts.shape)
    mask = jnp.broadcast_to(jnp.tri(texts.shape[1], dtype=bool), (*texts.shape, texts.shape[1]))
    model: Any = subject.target.model
    output = jax.jit(model.apply)(subject.target.params, texts, places, mask, None)
    hidden, there = np.asarray(output.hidden), np.asarray(places) < both.lengths[:, None]
    is_asked = np.arange(both.count) % (2 * count) < count
    return hidden[is_asked][there[is_asked]], hidden[~is_asked][there[~is_asked]]


def likeliest(head: Any, params: PyTree, states: np.ndarray) -> np.ndarray:
    """The token that each state's scores put first."""
    run = jax.jit(lambda params, one: head.scored(params)[head.score(params, one).argmax(-1)])
    parts = [run(params, jnp.asarray(one)[None])[0] for one in np.array_split(states, _PARTS)]
    return np.concatenate(parts)


def contenders(
    head: Any, params: PyTree, sizes: list[tuple[int, int]], states: np.ndarray
) -> list[tuple[str, Any, PyTree]]:
    """Name, module and variables of each way to score; the first scores all, the last is a plain
    SVD.
    """
    every = head.clone(config=replace(head.config, hot_tokens=0))
    kept = {part: params[part] for part in ("params", heads.TARGET)}
    made = [("all tokens", every, kept)]
    if hot := head.config.hot_tokens:
        made.append((f"{hot:,} hot tokens", head, params))
    for rank, count in sizes:
        narrow = heads.with_candidates(head, params, rank, count, states)
        made.append((f"{count} candidates of rank {rank}", *narrow))
    rank, count = sizes[-1]
    narrow = heads.with_candidates(head, params, rank, count)
    made.append((f"{count} candidates of rank {rank}, plain SVD", *narrow))
    return made


def scored(head: Any, params: PyTree, hidden: jax.Array) -> Any:
    """The scoring of a block's states alone, as a compiled program."""
    run = jax.jit(head.score)
    return lambda: run(params, hidden)


def medians(runs: dict[str, Any], repeats: int) -> dict[str, float]:
    """Milliseconds of each, timed in turn."""
    return {name: 1e3 * float(np.median(found)) for name, found in paired(runs, repeats).items()}


def table(
    found: dict[str, float],
    rows: list[dict[str, Any]],
    warm: list[float],
    drafts: dict[str, float],
    scores: dict[str, float],
) -> Table:
    """Share of the likeliest tokens, tokens per round by temperature, and times."""
    titles = (*(f"T {one:g}" for one in warm), "draft ms", "scores ms")
    shown = Table("scored", "found", *titles, box=box.MARKDOWN)
    for name, share in found.items():
        cells = [name, f"{share:.0%}"]
        for temperature in warm:
            of = [r for r in rows if (r["scored"], r["temperature"]) == (name, temperature)]
            cells.append(f"{sum(of[0]['tokens']) / sum(of[0]['rounds']):.2f}")
        cells += [f"{times[name]:.2f}" if times else "" for times in (drafts, scores)]
        shown.add_row(*cells)
    return shown


if __name__ == "__main__":
    command(main)
