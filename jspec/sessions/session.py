"""A loaded target and the drafter of a chosen method, ready to run."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jspec.methods import BUNDLED
from jspec.sessions.method_choice import Choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jspec.methods import LLM
    from jspec.models import Loaded
    from jspec.models.reasoning import Lead, Marks


@dataclass(frozen=True)
class Session:
    """All that a run needs besides prompts and settings."""

    llm: "LLM"
    choice: Choice
    name: str = BUNDLED
    """The target's name, as it was given."""
    marks: "Marks | None" = None
    lead: "Lead | None" = None
    """The marks of answers' parts, and what a grammar waits for; None: texts are continued."""

    @property
    def target(self) -> "Loaded":
        """The model, its weights and its tokenizer."""
        return self.llm.target


def start(
    model: str | None,
    draft_model: str | None,
    choice: Choice,
    dtype: str | None,
    kv_dtype: str | None = None,
    scan_layers: bool | None = None,
    adapters: "Mapping[str, str] | None" = None,
) -> Session:
    """Loads the models and builds the drafter.

    Args:
        model: a folder, a bundled model's name, or a hub id; None is the bundled model.
        draft_model: the same of the draft model, for a method that needs one.
        choice: the method.
        dtype: dtype of both models; None is the device's default, and weights as their file has
            them where that is exact: see `jspec.models.load`.
        kv_dtype: of their keys and values; None: `dtype`.
        scan_layers: whether their layers are scanned; None: where that costs nothing.
        adapters: LoRA adapters of the target, folders or hub ids by name.

    Raises:
        InputError: if a model cannot be loaded, or the two have different vocabularies.
    """
    target = load(model or BUNDLED, dtype, kv_dtype, scan_layers, adapters)
    draft = None if draft_model is None else load(draft_model, dtype, kv_dtype, scan_layers)
    llm = choice.method.build(target, draft, **choice.options)
    return Session(llm, choice, model or BUNDLED)


def with_adapter(session: Session, name: str) -> Session:
    """Returns the session in which all rows have one of the target's adapters."""
    model: Any = session.target.model
    params = model.choose(session.target.params, name)
    return with_target(session, replace(session.target, params=params))


def with_target(session: Session, target: "Loaded") -> Session:
    """Returns the session with other weights, end tokens or template of its model."""
    return replace(session, llm=replace(session.llm, target=target))


def load(
    name: str,
    dtype: str | None,
    kv_dtype: str | None = None,
    scan_layers: bool | None = None,
    adapters: "Mapping[str, str] | None" = None,
) -> "Loaded":
    """Returns a model with scanned layers, where scanning costs nothing.

    Args:
        name: a folder, a bundled model's name, or a hub id.
        dtype: None is the device's default, and weights as in `start`.
        kv_dtype: of keys and values; None: `dtype`.
        scan_layers: None: where it costs nothing.
        adapters: LoRA adapters, folders or hub ids by name.

    Raises:
        InputError: if it cannot be loaded.
    """
    from jspec import models
    from jspec.models import precision, scanning

    scan = scanning.free() if scan_layers is None else scan_layers
    held = precision.AUTO if dtype is None else None
    return models.load(name, dtype, held, scan_layers=scan, kv_dtype=kv_dtype, adapters=adapters)
