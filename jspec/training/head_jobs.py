"""Settings of a draft head's training run, from options or a recipe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError
from jspec.training import recipes
from jspec.training.loop import Recipe


@dataclass(frozen=True)
class HeadJob:
    """A training run of a draft head.

    Args:
        recipe: settings of the optimiser and its schedule.
        shape: what is left open of the head's config once the target is known.
        loss: what is left open of the objective once target and head are known.
        batch_size: sequences per update.
        sequence: tokens per sequence that are predicted from.
        seed: seed of the weights and of the order of the data.
        heldout: share of the text that is only evaluated on.
        epochs: passes over the training text, in place of the recipe's steps; 0: the steps.
        scores: times that the held-out text is scored on the way, evenly; it is in any case at the
            end.
    """

    recipe: Recipe
    shape: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 8
    sequence: int = 256
    seed: int = 0
    heldout: float = 0.05
    epochs: float = 0.0
    scores: int = 0

    def stepped(self, num_sequences: int) -> "HeadJob":
        """The job with as many steps as its epochs take over so many sequences."""
        if not self.epochs:
            return self
        steps = math.ceil(self.epochs * num_sequences / self.batch_size)
        return replace(self, recipe=replace(self.recipe, steps=steps))

    @property
    def scored_steps(self) -> frozenset[int]:
        """The steps after which the held-out text is scored."""
        steps = self.recipe.steps
        marks = (round(steps * part / self.scores) for part in range(1, self.scores + 1))
        return frozenset(max(mark, 1) for mark in marks)

    def settings(self) -> dict[str, Any]:
        """The settings that must not change when a run is resumed, as JSON values."""
        kept = ("learning_rate", "warmup", "floor", "schedule", "weight_decay", "beta2", "clip")
        return {
            **{name: getattr(self.recipe, name) for name in kept},
            **self.shape,
            **self.loss,
            "batch_size": self.batch_size,
            "sequence": self.sequence,
            "seed": self.seed,
            "heldout": self.heldout,
        }


def read(path: Path, kind: str) -> dict[str, Any]:
    """The settings that a recipe file has for a kind of head; {} if it has none.

    Raises:
        InputError: if the file is no recipe.
    """
    return recipes.part(recipes.part(recipes.read(path), "heads", path), kind, path)


def override(job: HeadJob, values: Mapping[str, Any]) -> HeadJob:
    """The job with some of its settings changed, each by its name.

    Raises:
        InputError: if a name is unknown or a value out of bounds.
    """
    left = dict(values)
    settings = (vars(job.recipe), job.shape, job.loss, vars(job))
    defaults = {name: value for part in settings for name, value in part.items()}
    recipes.check_like({name: left[name] for name in defaults.keys() & left.keys()}, defaults)
    parts: dict[str, Any] = {}
    known = {f.name for f in fields(Recipe)}
    parts["recipe"] = replace(job.recipe, **{k: left.pop(k) for k in known & left.keys()})
    for name in ("shape", "loss"):
        held = getattr(job, name)
        parts[name] = {**held, **{k: left.pop(k) for k in held.keys() & left.keys()}}
    own = {f.name for f in fields(HeadJob)} - parts.keys()
    if unknown := sorted(left.keys() - own):
        raise InputError(f"a recipe of this head has no setting {unknown[0]!r}; remove it")
    changed = replace(job, **parts, **left)
    _check(changed)
    return changed


def _check(job: HeadJob) -> None:
    everything = {
        **job.shape,
        **job.loss,
        **{f.name: getattr(job.recipe, f.name) for f in fields(job.recipe)},
        **{
            name: getattr(job, name)
            for name in ("batch_size", "sequence", "seed", "epochs", "scores")
        },
    }
    for name, value in everything.items():
        least = int(name in _COUNTS)
        if isinstance(value, int) and value < least:
            raise InputError(f"{name} is {value}; use {name} >= {least}")
        if isinstance(value, float) and not 0 <= value < float("inf"):
            raise InputError(f"{name} is {value}; use a finite {name} >= 0")
    if job.recipe.learning_rate == 0:
        raise InputError("learning_rate is 0; use one > 0")
    for name, share in (("cooldown", job.recipe.cooldown), ("floor", job.recipe.floor)):
        if share > 1:
            raise InputError(f"{name} is {share}; use a share from 0 to 1")
    if not 0 <= job.heldout < 1:
        raise InputError(f"heldout is {job.heldout}; use a share >= 0 and < 1")


_COUNTS = {
    "steps",
    "checkpoint_every",
    "batch_size",
    "sequence",
    "unroll",
    "num_heads",
    "num_layers",
}
