"""Runs of `jspec train`, and what the papers call what they trained."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from benchmarks.ledger import Ledger
from jspec.cli.train_run import HELDOUT_CURVE
from jspec.drafters.draft_head.eagle import EAGLE2
from jspec.drafters.draft_head.lyanna import Lyanna
from jspec.drafters.draft_head.lyanna_resampling import Resampling
from jspec.models import Loaded, heads
from jspec.models.heads.lyanna import LyannaHead
from jspec.models.heads.store import RECORD
from jspec.models.huggingface import config_json
from jspec.types import PyTree

DEPTH, WIDTH = 3, 4
"""Levels of a tree and children of a node in Lyanna's experiments (Chen et al. 2026, 7.2)."""

Head = tuple[Any, PyTree]
"""Module and variables, as decoding wants them."""


EagleHead = Annotated[
    str | None,
    typer.Option(metavar="DIR|NAME", help="EAGLE's head.", show_default="bundled, if --model is"),
]


@dataclass(frozen=True)
class Run:
    """A folder that `jspec train` wrote or still writes to.

    Raises:
        ValueError: if it is not one.
    """

    folder: Path

    def __post_init__(self):
        if not (self.folder / "settings.json").is_file():
            raise ValueError(
                f"{self.folder} has no settings.json; name the --out of a `jspec train` run"
            )

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        return config_json.read(self.folder / "settings.json").values

    @cached_property
    def curve(self) -> list[dict[str, Any]]:
        """A line for each step of training so far."""
        return Ledger(self.folder / "curve.jsonl").rows

    @cached_property
    def heldout_curve(self) -> list[dict[str, Any]]:
        """Scores by class on that text during training; empty without `--scores`."""
        return Ledger(self.folder / HELDOUT_CURVE).rows

    @property
    def setting(self) -> str:
        return setting(self.settings)

    @property
    def name(self) -> str:
        return f"{self.setting}, {len(self.curve)} steps"

    @cached_property
    def digest(self) -> str:
        """A text that identifies the weights of this run."""
        record = config_json.read(self.folder / "head" / RECORD)
        return str(record.get("weights"))[:16]

    def load(self, target: Loaded) -> Head:
        """Returns the trained head."""
        module, params, _ = heads.load(self.folder / "head", target)
        return module, params


def setting(trained: Mapping[str, Any]) -> str:
    """Returns the paper's name of a head with these settings."""
    if trained["kind"] == "eagle":
        return "EAGLE"
    if not trained["rank"]:
        return "Lyanna w/o token info"
    if not trained["first_token"]:
        return "Lyanna w/o first token"
    return "Lyanna, sparse" if trained["hot_tokens"] else "Lyanna"


def alike(runs: Sequence[Run]) -> dict[int, list[Run]]:
    """Runs of as many steps, which alone can be compared; the longest first."""
    lengths = sorted({len(run.curve) for run in runs}, reverse=True)
    return {length: [run for run in runs if len(run.curve) == length] for length in lengths}


def tree(
    head: Any,
    nodes: int,
    resampling: Resampling | None = None,
    depth: int = DEPTH,
    width: int = WIDTH,
) -> EAGLE2 | Lyanna:
    """Returns the kind's own tree of a depth, a width and a number of drafted nodes.

    Args:
        head: the module.
        nodes: without the root.
        resampling: Lyanna's.
        depth: levels.
        width: children of a node, and nodes of a level that get some.
    """
    if isinstance(head, LyannaHead):
        return Lyanna(head, nodes, depth, width, resampling)
    return EAGLE2(head, nodes, depth, width)


def trained(kind: str, name: str | None, target: Loaded) -> Head:
    """Returns a head of a kind for a target.

    Args:
        kind: "lyanna" or "eagle".
        name: as `--head` names it, or the --out of a run; None: the bundled one.
        target: the model that it drafts for.

    Raises:
        InputError: if there is none, or it is another target's.
    """
    found = name or heads.find(kind, target)
    if (Path(found) / "head").is_dir():
        found = str(Path(found) / "head")
    module, params, _ = heads.load(found, target, only=kind)
    return module, params


def digest(variables: PyTree) -> str:
    """Returns a text that identifies a head's weights."""
    leaves = jax.device_get(jax.tree.leaves(variables["params"]))
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()[:16]
