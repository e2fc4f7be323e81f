"""Settings of a training run, from options or a recipe file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError
from jspec.training import recipes
from jspec.training.corpus import CorpusSource
from jspec.training.loop import Recipe


@dataclass(frozen=True)
class Texts:
    """The texts of a run."""

    sources: tuple[CorpusSource, ...]
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingJob:
    """A training run of a draft model or a draft head."""

    recipe: Recipe
    shape: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 8
    sequence: int = 256
    seed: int = 0
    heldout: float = 0.05
    epochs: float = 0.0
    scores: int = 0

    def with_steps(self, num_sequences: int) -> "TrainingJob":
        """Returns the job with as many steps as its epochs take over so many sequences."""
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
        """Returns the settings that must not change when a run is resumed, as JSON values."""
        names = ("learning_rate", "warmup", "floor", "schedule", "weight_decay", "beta2", "clip")
        return {
            **{name: getattr(self.recipe, name) for name in names},
            **self.shape,
            **self.loss,
            "batch_size": self.batch_size,
            "sequence": self.sequence,
            "seed": self.seed,
            "heldout": self.heldout,
        }


def read_head(path: Path, kind: str) -> dict[str, Any]:
    """Returns the settings that a recipe file has for a kind of head; {} if it has none."""
    return recipes.part(recipes.part(recipes.read(path), "heads", path), kind, path)


def read_draft(path: Path) -> dict[str, Any]:
    """Returns the settings that a recipe file has for a draft model; {} if it has none."""
    return recipes.part(recipes.read(path), "draft", path)


def read_texts(path: Path, data: Path) -> Texts:
    """Returns the texts of a recipe file, with their weights."""
    table = recipes.read(path)
    if "text" not in table:
        raise InputError(f"{path} has no 'text'; write [[text]] for each text, or name texts")
    weights = recipes.part(table, "weights", path)
    recipes.check_like(weights, dict.fromkeys(weights, 1.0))
    bad = [label for label, weight in weights.items() if not 0 < weight < float("inf")]
    if bad:
        raise InputError(f"class {bad[0]} has weight {weights[bad[0]]}; use a finite one > 0")
    return Texts(_sources(table, path, data), weights)


def _sources(table: Mapping[str, Any], path: Path, data: Path) -> tuple[CorpusSource, ...]:
    listed = table["text"]
    if not isinstance(listed, list) or not all(isinstance(text, dict) for text in listed):
        raise InputError(f"{path} has {listed!r:.40} as its texts; write [[text]] for each of them")
    for text in listed:
        recipes.check_like(text, dict.fromkeys(("class", "path", "template", "strip"), ""))
    try:
        return tuple(
            CorpusSource(
                text["class"],
                data / text["path"],
                text.get("template", ""),
                text.get("strip", ""),
            )
            for text in listed
        )
    except KeyError as error:
        raise InputError(f"{path} has a text without {error}; give it one") from None


def override(job: TrainingJob, values: Mapping[str, Any]) -> TrainingJob:
    """Returns the job with some of its settings changed, each by its name."""
    rest = dict(values)
    settings = (vars(job.recipe), job.shape, job.loss, vars(job))
    defaults = {name: value for part in settings for name, value in part.items()}
    recipes.check_like({name: rest[name] for name in defaults.keys() & rest.keys()}, defaults)
    parts: dict[str, Any] = {}
    recipe_fields = {f.name for f in fields(Recipe)}
    parts["recipe"] = replace(job.recipe, **{k: rest.pop(k) for k in recipe_fields & rest.keys()})
    for name in ("shape", "loss"):
        group = getattr(job, name)
        parts[name] = {**group, **{k: rest.pop(k) for k in group.keys() & rest.keys()}}
    job_fields = {f.name for f in fields(TrainingJob)} - parts.keys()
    if unknown := sorted(rest.keys() - job_fields):
        raise InputError(f"a recipe of this kind has no setting {unknown[0]!r}; remove it")
    changed = replace(job, **parts, **rest)
    _check(changed)
    return changed


def _check(job: TrainingJob) -> None:
    parts = {"recipe", "shape", "loss", "heldout"}
    scalars = {name: value for name, value in vars(job).items() if name not in parts}
    for name, value in {**job.shape, **job.loss, **vars(job.recipe), **scalars}.items():
        minimum = int(name in _COUNTS)
        if isinstance(value, int) and value < minimum:
            raise InputError(f"{name} is {value}; use {name} >= {minimum}")
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
    *("steps", "checkpoint_every", "batch_size", "sequence", "unroll", "num_target_tokens"),
    *("num_heads", "num_layers"),
}
"""Settings that are at least 1; others are at least 0."""
