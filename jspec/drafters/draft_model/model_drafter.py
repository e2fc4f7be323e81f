"""A language model that drafts: its arguments and refusals."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number
from jspec._validate.options import check_fields
from jspec.protocols import CausalLM, Drafter, Verifier
from jspec.types import Output, PyTree, Sampling
from jspec.verify import schemes
from jspec.verify.schemes import COUPLED, Scheme


@dataclass(frozen=True)
class ModelDrafter(Drafter):
    """A drafter whose proposals come from a language model of the target's vocabulary."""

    model: CausalLM
    scheme: Scheme = field(default=COUPLED, kw_only=True)
    sampling: Sampling | None = field(default=None, kw_only=True)

    follows_text: ClassVar = True
    paper_settings: ClassVar[Mapping[str, Any] | None] = None
    """The arguments that make the method the published one; None: it is jspec's own."""

    @classmethod
    def published(cls, model: CausalLM, **options: Any) -> Self:
        """Returns the method as in its paper, with its scheme and settings."""
        if cls.paper_settings is None:
            raise InputError(
                f"{cls.__name__} is jspec's own and has no published settings; call "
                f"jspec.{cls.__name__}(model, ...)"
            )
        return cls(model, **{**cls.paper_settings, **options})

    def __post_init__(self):
        if isinstance(self.model, type) or not all(
            hasattr(self.model, name)
            for name in ("vocab_size", "context", "init_memory", "apply", "commit")
        ):
            raise InputError(
                f"the draft model is {self.model!r:.80}; pass a jspec.CausalLM, such as the model "
                "of what jspec.models.load returns"
            )
        if not hasattr(self.model, "until"):
            raise InputError(
                f"the draft model is {self.model!r:.80}, which has no method until; a "
                "draft model's memory is cut back where a text is, see jspec.CausalLM"
            )
        schemes.check(self.scheme)
        _check_sampling(self.sampling)
        check_fields(self)

    @property
    def verifier(self) -> Verifier:
        """The verifier that makes the drafter's draws lossless: the scheme's."""
        return self.scheme.verifier

    @property
    def context(self) -> int | None:
        """The longest row that the draft model can read, in tokens; None if it has no bound."""
        return self.model.context

    @property
    @abstractmethod
    def depth(self) -> int:
        """The largest number of levels below the root."""

    def empty_cache(self, batch: int, capacity: int) -> PyTree:
        """Returns the model's memory for rows of so many tokens, at most its context."""
        # The engine refuses texts beyond the context; the slots that it rounds up to hold no text.
        capacity = capacity if self.context is None else min(capacity, self.context)
        return self.model.init_memory(batch, capacity)

    def check_models(self, params: PyTree, target: Output) -> None:
        """Raises InputError if the weights are missing, or the target has other tokens."""
        _check_vocabulary(self.model.vocab_size, target.logits.shape[-1])
        if params is None:
            raise InputError(
                "drafter_params is None and a draft model needs its weights; "
                "pass drafter_params=weights along with the drafter"
            )

    def check_weights(self, own: Output) -> None:
        """Raises InputError if the weights score fewer tokens than the draft model has."""
        if (scored := own.logits.shape[-1]) < self.model.vocab_size:
            raise InputError(
                f"drafter_params score {scored} tokens and the draft model has "
                f"{self.model.vocab_size}; pass the weights of the drafter's own model"
            )


def _check_sampling(sampling: Any) -> None:
    """Raises InputError unless this is None, or a Sampling that `decode` would take."""
    if sampling is None:
        return
    if not isinstance(sampling, Sampling):
        raise InputError(
            f"the drafter's sampling is {sampling!r:.80}; pass jspec.Sampling of plain numbers, or "
            "None for the target's"
        )
    of = "the drafter's sampling:"
    check_number(f"{of} temperature", sampling.temperature, 0, 1e6, "0 is greedy")
    check_integer(f"{of} top_k", sampling.top_k, 0, 2**31 - 1, "0 switches it off")
    check_number(f"{of} top_p", sampling.top_p, 1e-6, 1, "1 switches it off")
    check_number(f"{of} min_p", sampling.min_p, 0, 1, "0 switches it off")


def _check_vocabulary(draft: int, target: int) -> None:
    """Raises InputError unless both models have the same tokens."""
    if draft == target:
        return
    small, large = sorted((draft, target))
    message = (
        f"the draft model has {draft} tokens and the target {target}, {large - small} apart; take "
        "two models of one tokenizer"
    )
    if large % 64 == 0 and small > 64 and large - small < 1024:
        message += (
            f" ({large} is a multiple of 64: if the two have one tokenizer and the last tokens are "
            f"padding, pass jspec.PaddedVocabulary(draft, {target}) as the draft model)"
        )
    raise InputError(message)
