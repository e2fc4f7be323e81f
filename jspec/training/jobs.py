"""Settings of a language model's training run, from options or a recipe file."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError
from jspec.training import recipes
from jspec.training.corpus import Corpus, CorpusSource, fingerprint
from jspec.training.loop import Recipe


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, under the names of its config."""

    hidden_size: int = 256
    intermediate_size: int = 688
    num_layers: int = 8
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    context: int = 1024


@dataclass(frozen=True)
class TrainingJob:
    """A training run of a language model.

    Args:
        weights: share of the training rows per class; an absent class counts 1.
        heldout: share of each class's documents that is never trained on.
        vocab_size: size of the tokenizer to train, where none is given.
        num_target_tokens: tokens that each of a target's distributions is cut to, where the model
            learns those.
        sequences: most sequences that are read there, drawn from the classes by their weights, and
            read again and again; 0: all.
    """

    sources: tuple[CorpusSource, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    shape: Shape = Shape()
    recipe: Recipe = field(default_factory=lambda: Recipe(steps=1000))
    vocab_size: int = 4096
    batch_size: int = 8
    sequence: int = 512
    seed: int = 0
    heldout: float = 0.05
    num_target_tokens: int = 32
    sequences: int = 0

    def settings(self, corpus: Corpus, vocabulary: str) -> dict[str, Any]:
        """The settings that must not change when a run is resumed, as JSON values.

        Args:
            corpus: the documents.
            vocabulary: the tokenizer, as text.
        """
        return {
            **self.plain(),
            "weights": {label: self.weights.get(label, 1.0) for label in corpus.train},
            "text": fingerprint(corpus),
            "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest()[:16],
        }

    def plain(self) -> dict[str, Any]:
        """Those that need neither text nor vocabulary.

        The number of steps may change: a run whose cooldown has not begun can be lengthened or cut.
        """
        recipe = asdict(self.recipe)
        for name in ("steps", "cooldown", "checkpoint_every"):
            del recipe[name]
        return {
            **asdict(self.shape),
            **recipe,
            "batch_size": self.batch_size,
            "sequence": self.sequence,
            "seed": self.seed,
        }


def read(path: Path, data: Path, model: str) -> TrainingJob:
    """A job from a recipe file, which describes one corpus and one or more models.

    Args:
        path: a TOML file.
        data: folder that the paths in it are relative to.
        model: which of its models to train.

    Raises:
        InputError: if the file is no recipe, or has no such model.
    """
    table = _table(path, ("models", "text"))
    models = recipes.part(table, "models", path)
    if model not in models:
        raise InputError(f"{path} has no model {model!r}; use one of {', '.join(models)}")
    shared = (recipes.part(table, name, path) for name in ("tokenizer", "train"))
    values = {name: value for one in shared for name, value in one.items()}
    values |= recipes.part(models, model, path)
    return override(_with_texts(table, path, data), values)


def texts(path: Path, data: Path) -> TrainingJob:
    """The texts of a recipe file alone, with their weights and what is held out of them.

    Args:
        path: a TOML file.
        data: folder that the paths in it are relative to.

    Raises:
        InputError: if the file is no recipe.
    """
    table = _table(path, ("text",))
    given = recipes.part(table, "train", path)
    kept = {name: given[name] for name in ("heldout",) if name in given}
    return override(_with_texts(table, path, data), kept)


def _table(path: Path, needs: Sequence[str]) -> dict[str, Any]:
    table = recipes.read(path)
    for name in needs:
        if name not in table:
            raise InputError(f"{path} has no {name!r}; a recipe needs {' and '.join(needs)}")
    return table


def _with_texts(table: Mapping[str, Any], path: Path, data: Path) -> TrainingJob:
    """A job of the texts of a recipe, and their weights."""
    weights = recipes.part(table, "weights", path)
    recipes.check_like(weights, dict.fromkeys(weights, 1.0))
    return TrainingJob(sources=_sources(table, path, data), weights=weights)


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
    """The job with some of its settings changed, each by its name in `TrainingJob`, `Shape` or
    `Recipe`.

    Raises:
        InputError: if a name is unknown or a value out of bounds.
    """
    parts = {"shape": job.shape, "recipe": job.recipe}
    own = {f.name for f in fields(job)} - parts.keys()
    left = dict(values)
    for part in (*parts.values(), job):
        known = {f.name: getattr(part, f.name) for f in fields(part)}
        recipes.check_like({name: left[name] for name in known.keys() & left.keys()}, known)
    for name, part in parts.items():
        known = {f.name for f in fields(part)}
        parts[name] = replace(part, **{key: left.pop(key) for key in known & left.keys()})
    if unknown := sorted(left.keys() - own):
        raise InputError(f"a recipe has no setting {unknown[0]!r}; remove it")
    changed = replace(job, **parts, **left)
    check(changed)
    return changed


def check(job: TrainingJob) -> None:
    shape, recipe = job.shape, job.recipe
    for owner in (shape, job, recipe):
        for f in fields(owner):
            value = getattr(owner, f.name)
            if isinstance(value, int) and value < (f.name in SIZES):
                raise InputError(f"{f.name} is {value}; use {f.name} >= {int(f.name in SIZES)}")
    if shape.num_heads % shape.num_kv_heads:
        raise InputError(
            f"{shape.num_heads} heads do not share {shape.num_kv_heads} key-value heads evenly; "
            f"use a divisor of {shape.num_heads}"
        )
    if shape.head_dim % 2:
        raise InputError(f"head_dim is {shape.head_dim}; rotary embeddings need an even one")
    if job.sequence > shape.context:
        raise InputError(
            f"sequence {job.sequence} is longer than the context {shape.context}; use a sequence "
            f"<= {shape.context}"
        )
    if not 0 < recipe.learning_rate < float("inf"):
        raise InputError(f"learning_rate is {recipe.learning_rate}; use a finite one > 0")
    if not 0 <= job.heldout < 1:
        raise InputError(f"heldout is {job.heldout}; use a share >= 0 and < 1")
    if not 0 <= recipe.cooldown <= 1:
        raise InputError(f"cooldown is {recipe.cooldown}; use a share from 0 to 1")
    bad = [label for label, weight in job.weights.items() if not 0 < weight < float("inf")]
    if bad:
        raise InputError(f"class {bad[0]} has weight {job.weights[bad[0]]}; use a finite one > 0")


SIZES = {f.name for f in fields(Shape)} | {
    "steps",
    "batch_size",
    "sequence",
    "vocab_size",
    "num_target_tokens",
    "checkpoint_every",
}
