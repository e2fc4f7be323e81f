"""A loaded target and the drafter of a chosen method, ready to run."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jspec._validate.arguments import check_integer
from jspec.methods import BUNDLED, LLM
from jspec.sessions.method_choice import Choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jspec.models import Loaded
    from jspec.models.reasoning import Lead, Marks


@dataclass(frozen=True)
class Session:
    """All that a run needs besides prompts and settings."""

    llm: LLM
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
    batch_invariant: int | None = None,
) -> Session:
    """Loads the models and builds the drafter."""
    target = load(model or BUNDLED, dtype, kv_dtype, scan_layers, adapters)
    if batch_invariant is not None:
        from jspec.models import BatchInvariant

        network: Any = target.model
        check_integer(
            "batch_invariant", batch_invariant, 2, network.context, "what the model's context holds"
        )
        network = network.clone(attention_impl=BatchInvariant(batch_invariant))
        target = replace(target, model=network)
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
    return replace(session, llm=LLM(target, **session.llm.drafting))


def load(
    name: str,
    dtype: str | None,
    kv_dtype: str | None = None,
    scan_layers: bool | None = None,
    adapters: "Mapping[str, str] | None" = None,
) -> "Loaded":
    """Returns a model with scanned layers, where scanning costs nothing."""
    from jspec import models
    from jspec.models import precision, scanning

    scan = scanning.free() if scan_layers is None else scan_layers
    param_dtype = precision.AUTO if dtype is None else None
    return models.load(
        name, dtype, param_dtype, scan_layers=scan, kv_dtype=kv_dtype, adapters=adapters
    )
