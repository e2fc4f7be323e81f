"""The runs of each part of `benchmarks.recycling`: rows of a table, by label."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jspec
from jspec.drafters.draft_head import medusa
from jspec.methods.device_defaults import lookahead

PARTS = ("table", "shuffled", "breadth", "depth", "update", "time")
Rows = dict[str, tuple[str, dict[str, Any]]]
"""A method's name on the command line and its options, by label."""
TABLE: Rows = {
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
"""Rows of Table 1 beside Lookahead and REST."""
PUBLISHED_LOOKAHEAD = {"window": 7, "ngram": 5, "guesses": 7}
OF_ONE_SIZE = ("Medusa", "Lyanna + suffix", "TR, published", "TR, measured")
"""Rows that a common budget leaves out, since their trees have a size of their own."""


def table(nodes: int | None, datastore: Path | None, tree: Path | None) -> Rows:
    """The rows of Table 1, each with its own number of nodes or all with the same."""
    found = {
        "lookahead": ("lookahead", PUBLISHED_LOOKAHEAD if nodes is None else lookahead(nodes)),
        **TABLE,
    }
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
    """The options as text, in which a file stands by its contents."""
    known = dict(options)
    if "datastore" in known:
        known["datastore"] = digest(Path(known["datastore"]))
    return json.dumps(known, sort_keys=True)


def digest(path: Path) -> str:
    """A text that tells one file's contents from another's."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def rows(part: str, table: Rows) -> Rows:
    """The rows that a part runs.

    Raises:
        ValueError: if there is no such part.
    """
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
    raise ValueError(f"no part {part!r}; there are {', '.join(PARTS)}")
