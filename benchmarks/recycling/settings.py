"""The rows of each part of `benchmarks.recycling.counts`, by label."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import jspec
from benchmarks.recycling.updates import AcceptedAlone, CellsMerge, FirstWins
from benchmarks.texts import digest
from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec.drafters.contrib.spine_trees import TEMPLATES, name_node, read
from jspec.drafters.draft_head import eagle, medusa
from jspec.drafters.retrieval.token_pairs import NONE
from jspec.methods import LLM, ngram_tables
from jspec.models import Loaded, heads
from jspec.models.fingerprint import fingerprint
from jspec.tree.template import best_paths

PARTS = ("table", "breadth", "depth", "update", "pairs", "spine")


@dataclass(frozen=True)
class Row:
    """One row of a table: a drafter, and whether each question starts with an empty memory."""

    make: Callable[[Loaded], LLM]
    told: str
    """The settings that identify rows."""
    cold: bool = False
    replayed: bool = False
    """True where drafts are made of text and the target's outputs along it alone: the answer is
    known, and no round needs a forward."""


Rows = dict[str, Row]


def method(name: str, cold: bool = False, **options: Any) -> Row:
    """Returns a method of the command line, with its options."""
    known = dict(options)
    for file in known.keys() & {"datastore", "ngrams"}:
        known[file] = digest(Path(known[file]))
    told = json.dumps({"method": name, **known}, sort_keys=True)
    return Row(lambda target: LLM(target, name, **options), told, cold)


def drafting(kind: Callable[..., Any], **options: Any) -> Row:
    """Returns a drafter of the benches' own, made of the target's vocabulary."""
    return Row(
        lambda target: LLM(target, drafter=kind(target.model.vocab_size, **options)),
        kind.__name__,
    )


def trained(named: str, target: Loaded) -> Rows:
    """Returns rows of a trained head by label, with its published tree; a block head has none.

    Args:
        named: the head: a folder, or a bundled one.
        target: that it was trained for.

    Raises:
        InputError: if there is no such head, or its kind has no row.
    """
    module, variables = heads.read_variables(named, target)
    kind = heads.kind_of(module)
    if kind not in TREES:
        raise InputError(f"{named} is of kind {kind}; give one of kind {', '.join(TREES)}")
    which = fingerprint(variables["params"])[:16]
    return {
        label: Row(
            lambda target, name=name, options=options: LLM(target, name, head=named, **options),
            json.dumps({"method": name, "head": which, **options}, sort_keys=True),
        )
        for label, (name, options) in TREES[kind](module).items()
    }


def _medusa_tree(levels: int) -> tuple[tuple[int, ...], ...]:
    return tuple(path for path in medusa.PUBLISHED.paths if len(path) <= levels)


TREES: dict[str, Callable[[Any], dict[str, tuple[str, dict[str, Any]]]]] = {
    "medusa": lambda head: {"Medusa": ("medusa", {"template": _medusa_tree(head.num_heads)})},
    "eagle": lambda head: {
        "EAGLE": ("eagle", {"template": eagle.PUBLISHED.paths}),
        "EAGLE, chain": ("eagle", {"template": trees.chain(eagle.PUBLISHED.depth).paths}),
        "EAGLE-2": (
            "eagle2", {"num_speculative_tokens": 59, "max_depth": 8, "beam": 10, "sharpness": 1.0},
        ),
    },
    "lyanna": lambda head: {
        "Lyanna": (
            "lyanna",
            {
                "num_speculative_tokens": 11, "max_depth": 3, "beam": 4, "sharpness": 1.0,
                "resampling": "merged", "resampled_tokens": 6,
            },
        ),
    },
    "block": lambda head: {"block": ("block", {"num_speculative_tokens": 63})},
}  # fmt: skip
"""Method and options of each row that a kind of head has, by label."""

RATES = (0.6, 0.12, 0.05, 0.035, 0.025, 0.02, 0.015, 0.015)
"""Acceptance by rank, from which the trees of Fig. 3 are grown: the paper does not print its
own. Between the rates of two small models, see `token_recycling.fit_tree`.
"""
BREADTHS, DEPTHS = (30, 40, 50, 60, 70, 80, 90), (4, 5, 6, 7, 8)
"""Nodes of Fig. 3 (a), all with 6 levels, and levels of Fig. 3 (b), all with 80 nodes."""


def grown(nodes: int, depth: int) -> tuple[tuple[int, ...], ...]:
    """Returns the likeliest tree of at most so many nodes and levels, as paths of ranks."""
    return tuple(best_paths(lambda level: RATES if level < depth else (), nodes))


PUBLISHED_LOOKAHEAD: dict[str, Any] = {"window": 7, "ngram": 5, "guesses": 7}


def rows(part: str) -> Rows:
    """Returns the rows of a part of Fig. 3, or of the paper's title.

    Raises:
        InputError: if there is no such part.
    """
    published = method("token_recycling", shape="published")
    match part:
        case "breadth":
            return {
                f"TR, {nodes} nodes": method("token_recycling", template=grown(nodes, 6))
                for nodes in BREADTHS
            } | {"TR, published": published}
        case "depth":
            return {
                f"TR, {depth} levels": method("token_recycling", template=grown(80, depth))
                for depth in DEPTHS
            } | {"TR, published": published}
        case "update":
            return {
                "TR, first": drafting(FirstWins),
                "TR, cell by cell": drafting(CellsMerge),
                "TR, last": published,
                "TR, accepted alone": Row(
                    lambda target: LLM(
                        target,
                        drafter=AcceptedAlone(jspec.TokenRecycling(target.model.vocab_size)),
                    ),
                    "AcceptedAlone",
                    replayed=True,
                ),
            }
        case "pairs":  # which the paper has not
            pairs = method("token_recycling", shape="published", pairs=1 << 17)
            auto = method("auto", num_speculative_tokens=63)
            return {
                "TR, pairs": pairs, "auto, 63 nodes": auto, "TR, published": published,
            }  # fmt: skip
        case "spine":  # GOOSE's and RACER's claims, at equal nodes
            return (
                {
                    f"{label}, {nodes} nodes": row
                    for nodes in (15, 63)
                    for label, row in {
                        "suffix": replace(
                            method("suffix", num_speculative_tokens=nodes), replayed=True
                        ),
                        "TR": method("token_recycling", num_speculative_tokens=nodes),
                        "spine": method("spine", num_speculative_tokens=nodes),
                        "spine with table": spine(nodes),
                    }.items()
                }
                | {
                    "PLD, 15 nodes": replace(
                        method("prompt_lookup", num_speculative_tokens=15), replayed=True
                    ),
                }
                | {f"without {part}": spine(15, part) for part in LEFT_OUT}
            )
    raise InputError(f"--parts {part} is not there; give some of {', '.join(PARTS)}")


def spine(nodes: int, part: str | None = None) -> Row:
    """Returns Spine with the target's own n-gram table, and without a part of it."""

    def make(target: Loaded) -> LLM:
        if (table := ngram_tables.find(target)) is None:
            raise InputError("the model has no n-gram table; make one by jspec warm")
        llm = LLM(target, "spine", num_speculative_tokens=nodes, ngrams=table)
        return LEFT_OUT[part](llm) if part else llm

    told = {"method": "spine", "num_speculative_tokens": nodes, "ngrams": "own", "without": part}
    return Row(make, json.dumps(told, sort_keys=True))


def _exchange(llm: LLM, **part: Any) -> LLM:
    return LLM(llm.target, **llm.drafting | part)


def _change(llm: LLM, **options: Any) -> LLM:
    return _exchange(llm, drafter=replace(llm.drafter, **options))


def _mean_template() -> str:
    """Returns the nodes that have the largest rates in the mean of the six templates."""
    rates: dict[tuple[int, ...], float] = {}
    for template in map(read, TEMPLATES):
        for path, rate in template.items():
            rates[path] = rates.get(path, 0.0) + rate / len(TEMPLATES)
    best = sorted(rates, key=lambda path: (-rates[path], len(path)))[1:64]
    return " ".join(f"{name_node(path)}:{max(round(rates[path]), 1)}" for path in best)


def _without_pairs(llm: LLM) -> LLM:
    table = llm.drafter_params
    return _exchange(
        llm, drafter_params=replace(table, line_of_pair=jnp.full_like(table.line_of_pair, NONE))
    )


LEFT_OUT: dict[str, Callable[[LLM], LLM]] = {
    "copies": partial(_change, templates=TEMPLATES[:1] * len(TEMPLATES)),
    "a template for each match": partial(_change, templates=(_mean_template(),) * len(TEMPLATES)),
    "lines of pairs": _without_pairs,
    "outputs of rejected nodes": lambda llm: _exchange(llm, drafter=AcceptedAlone(llm.drafter)),
}
"""How Spine loses a part, by its name."""
