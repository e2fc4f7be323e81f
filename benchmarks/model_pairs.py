"""Subjects of a bench: a target, its draft model, and texts by class."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax

from benchmarks import texts
from benchmarks.texts import Prompts, Texts
from jspec._validate.errors import InputError
from jspec.methods import BUNDLED, BUNDLED_DRAFT
from jspec.models import Loaded, load


@dataclass(frozen=True)
class Subject:
    """A target, and the texts that it continues or answers."""

    name: str
    """Of the models, as they were named."""
    target: Loaded
    texts: Texts

    @property
    def classes(self) -> tuple[str, ...]:
        return self.texts.classes

    @property
    def about(self) -> dict[str, str]:
        """Settings that identify rows of these models and texts."""
        return {"pair": self.name, "texts": self.texts.name}

    def prompts(self, kind: str, count: int, tokens: int) -> Prompts:
        """Returns `count` prompts of a class, see `Texts.choose`."""
        chosen = self.texts.choose(self.target, kind, count, tokens)
        return texts.pad([ids for _, ids in chosen])

    def of_all_classes(self, count: int, tokens: int) -> Prompts:
        """Returns `count` prompts of each class, the classes one after the other."""
        return texts.join([self.prompts(kind, count, tokens) for kind in self.classes])


@dataclass(frozen=True)
class Pair(Subject):
    """Two models of one vocabulary, and texts."""

    draft: Loaded

    @cached_property
    def ratio(self) -> float:
        """Parameters of the draft over the target's: r of the memory-bound speed-up.

        RSD (Jeon et al. 2024), appendix C.2, where the text has it upside down.
        """
        return _parameters(self.draft) / _parameters(self.target)


def subject(
    model: str | None,
    questions: Path | None,
    prompts: Path | None,
    classes: str,
    scan_layers: bool = False,
) -> Subject:
    """Loads a target, and finds its texts.

    Args:
        model: as `--model` names it; None: the bundled one.
        questions: a file in Spec-Bench's schema, if one was given.
        prompts: a file of prompts, if one was given.
        classes: of the shared texts, where there is neither.
        scan_layers: whether layers are scanned: for benches that count, and compile much.

    Raises:
        InputError: if one of them cannot be used.
    """
    found, name = texts.find(questions, prompts, classes), model or BUNDLED
    return Subject(_short(name), load(name, scan_layers=scan_layers), found)


def pair(
    model: str | None,
    draft_model: str | None,
    questions: Path | None,
    prompts: Path | None,
    classes: str,
    scan_layers: bool = False,
) -> Pair:
    """Loads a target with its draft model, and finds its texts. Arguments as of `subject`.

    Raises:
        InputError: if one of them cannot be used, or there is no draft model.
    """
    if draft_model is None and model not in (None, BUNDLED):
        raise InputError(
            "a draft model is needed and none was given; pass --draft-model with a folder, a GGUF "
            "file or a hub id"
        )
    named = draft_model or BUNDLED_DRAFT
    one = subject(model, questions, prompts, classes, scan_layers)
    draft = load(named, scan_layers=scan_layers)
    if draft.model.vocab_size != one.target.model.vocab_size:
        raise InputError(
            f"--draft-model has {draft.model.vocab_size} tokens and --model "
            f"{one.target.model.vocab_size}; name two models of one vocabulary"
        )
    return Pair(f"{one.name}, {_short(named)}", one.target, one.texts, draft)


def _short(name: str) -> str:
    """Returns the last part of a name; of a run's folder `model` (`jspec train`), the run's."""
    path = Path(name)
    return (path.parent if path.name == "model" else path).name or name


def _parameters(loaded: Loaded) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(loaded.params))
