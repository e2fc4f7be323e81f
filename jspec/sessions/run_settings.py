"""The settings of a run besides models and method, checked early."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError
from jspec.request import Request
from jspec.sessions.answer_form import AnswerForm
from jspec.sessions.generation_config import GenerationConfig

if TYPE_CHECKING:
    from jspec.models.load import Loaded
    from jspec.models.reasoning import Lead

_SEEDS = 2**32


def sampling_request(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int, ignore_eos: bool = False
) -> Request:
    """Returns what commands ask for that have no other options of a request."""
    filters: Any = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    eos = () if ignore_eos else None
    return Request(temperature=temperature, seed=seed, eos=eos, **filters)


@dataclass(frozen=True)
class RunSettings:
    """The settings by which the prompts of a run are continued."""

    max_new_tokens: int = 128
    request: Request = Request(seed=0)  # noqa: RUF009 (frozen)
    """What is asked for, but for the most tokens; stop strings are texts."""
    form: AnswerForm = AnswerForm()  # noqa: RUF009 (frozen)
    batch_size: int = 1
    memory: Path | None = None

    def __post_init__(self):
        for name in ("max_new_tokens", "batch_size"):
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if value < 1:
                raise InputError(f"{option} is {value}; pass at least 1")
            if value >= 2**31:
                raise InputError(f"{option} is {value}; pass at most {2**31 - 1}")
        if not 0 <= (seed := self.request.seed) < _SEEDS:
            raise InputError(f"--seed is {seed}; pass an integer in 0 .. {_SEEDS - 1}")
        texts: Any = self.request.stop or ()
        if not all(texts):
            raise InputError("an empty text was given to --stop; give it a letter")
        if self.form and self.request.eos == ():
            raise InputError(
                "a grammar and --ignore-eos were given; an answer of a grammar has an end"
            )

    def by_model(
        self, target: "Loaded", config: GenerationConfig, names: Collection[str]
    ) -> "RunSettings":
        """Returns the settings with the model's values for all but the options of these names."""
        fields: dict[str, Any] = config.sampling(target, names)
        if words := config.banned_sequences(target):
            from jspec.processors import banned_sequences

            fields["processors"] = (banned_sequences(words),)
        return replace(self, request=replace(self.request, **fields))

    def request_of(self, target: "Loaded", lead: "Lead | None" = None) -> Request:
        """Returns what is asked of a model: with its end tokens, and automata for texts."""
        from jspec.processors.grammar.stops import stop_strings

        request: Any = self.request
        stop = stop_strings(request.stop, target.tokenizer) if request.stop else None
        eos = target.eos if request.eos is None else request.eos
        return replace(request, stop=stop, eos=eos, grammar=self.form.grammar(target, lead))
