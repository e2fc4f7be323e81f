"""Heads that `jspec train` made, and how often their drafts are accepted."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from jaxtyping import Float, Int

from benchmarks.ledger import Ledger
from benchmarks.model_pairs import Subject
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import Decoding
from jspec.cli.train_run import HELDOUT_CURVE
from jspec.drafters.draft_head.eagle import EAGLE2
from jspec.drafters.draft_head.lyanna import Lyanna
from jspec.drafters.draft_head.lyanna_resampling import Resampling
from jspec.models import Loaded, heads
from jspec.models.heads.lyanna import LyannaHead
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
    def heldout_curve(self) -> list[dict[str, Any]]:
        """Scores by class on that text during training; empty without `--scores`."""
        return Ledger(self.folder / HELDOUT_CURVE).rows

    def load(self, target: Loaded) -> Head:
        """Returns the trained head."""
        module, params, _ = heads.load(self.folder / "head", target)
        return module, params


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


def histograms(
    subject: Subject,
    drafter: EAGLE2 | Lyanna,
    variables: PyTree,
    prompts: Prompts,
    new_tokens: int,
) -> Int[np.ndarray, "B P"]:
    """Rounds of each row by accepted drafts, up to the one that passes `new_tokens`, whole."""
    target = subject.target
    one = Decoding(target.model, target.params, drafter, variables, new_tokens)
    return one.count(prompts).histogram[:, : drafter.depth + 1]


def conditional(histogram: Int[np.ndarray, "*A P"]) -> Float[np.ndarray, "*A P-1"]:
    """Returns acceptance per draft step given that all before were accepted; NaN if none were."""
    reached = np.cumsum(histogram[..., ::-1], axis=-1)[..., ::-1]
    return reached[..., 1:] / np.where(reached[..., :-1] > 0, reached[..., :-1], np.nan)


def tokens_per_round(histogram: Int[np.ndarray, "*A P"]) -> Float[np.ndarray, "*A"]:
    """Returns mean tokens per round, the bonus token included."""
    return (histogram * np.arange(1, histogram.shape[-1] + 1)).sum(-1) / histogram.sum(-1)
