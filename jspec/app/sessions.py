"""A loaded model and a drafter, ready to run."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jspec.app.config import BUNDLED, Choice
from jspec.errors import InputError
from jspec.methods.builders import Models

if TYPE_CHECKING:
    from jspec.base import PyTree
    from jspec.models import Loaded
    from jspec.protocols import Drafter


@dataclass(frozen=True)
class Session:
    """What a run needs besides prompts and settings."""

    target: "Loaded"
    method: str
    scheme: str
    drafter: "Drafter"
    drafter_params: "PyTree"
    trained: bool = False
    """Whether the drafter has a head that was trained for one target."""


def start(model: str | None, draft_model: str | None, choice: Choice, dtype: str | None) -> Session:
    """Loads what is named and builds the drafter.

    Args:
        model: a folder, a bundled model's name, or a hub id; None is the bundled model.
        draft_model: likewise, for a method that needs one.
        choice: the method.
        dtype: of both models; None is the device's default.

    Raises:
        InputError: if a model cannot be loaded, or the two have different vocabularies.
    """
    from jspec import models
    from jspec.models.heads.registry import with_taps

    target = models.load(model or BUNDLED, dtype)
    draft = None if draft_model is None else models.load(draft_model, dtype)
    if draft is not None:
        check_same_vocabulary(target, draft, draft_model or "")
    drafter, params = choice.method.build(Models(target, draft), **choice.options)
    if (head := getattr(drafter, "head", None)) is not None:
        target = replace(target, model=with_taps(target.model, head))
    method = choice.method
    return Session(target, method.name, choice.scheme, drafter, params, method.needs_training)


def check_same_vocabulary(target: "Loaded", draft: "Loaded", name: str) -> None:
    """Raises InputError unless a token means the same to both."""
    fix = "name a draft model that was made for the target's tokenizer"
    ours, theirs = target.model.vocab_size, draft.model.vocab_size
    if ours != theirs:
        raise InputError(
            f"--draft-model {name} has a vocabulary of {theirs} tokens and the target one of "
            f"{ours}; {fix}"
        )
    if target.tokenizer.get_vocab() != draft.tokenizer.get_vocab():
        raise InputError(
            f"--draft-model {name} has as many tokens as the target, {ours}, but other ones; {fix}"
        )
