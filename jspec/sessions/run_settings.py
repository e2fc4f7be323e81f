"""The settings of `jspec generate` besides models and method, checked early."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError
from jspec.sessions.control_settings import ControlSettings
from jspec.sessions.generation_config import GenerationConfig

if TYPE_CHECKING:
    from jspec.models.load import Loaded
    from jspec.types import Sampling

_SEEDS = 2**32


@dataclass(frozen=True)
class RunSettings:
    """The settings by which the prompts of a run are continued."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    batch_size: int = 1
    control: ControlSettings = field(default_factory=ControlSettings)
    memory: Path | None = None

    def __post_init__(self):
        _at_least("--max-new-tokens", self.max_new_tokens, 1)
        _at_least("--batch-size", self.batch_size, 1)
        _at_least("--top-k", self.top_k, 0, "0 switches it off")
        # The bounds are those of `jspec.decode`, which loads a model before it can be asked.
        _within("--temperature", self.temperature, 0, 1e6, "0 is greedy")
        _within("--top-p", self.top_p, 1e-6, 1, "1 switches it off")
        _within("--min-p", self.min_p, 0, 1, "0 switches it off")
        if not 0 <= self.seed < _SEEDS:
            raise InputError(f"--seed is {self.seed}; pass an integer in 0 .. {_SEEDS - 1}")

    def by_model(
        self, target: "Loaded", config: GenerationConfig, names: Collection[str]
    ) -> "RunSettings":
        """Returns the settings with the model's values for all but the options of these names."""
        own: dict[str, Any] = config.sampling(target, names)
        control = {"banned_sequences": config.banned_sequences(target)}
        control |= {name: own.pop(name) for name in ("repetition_penalty",) if name in own}
        return replace(self, control=replace(self.control, **control), **own)

    @property
    def sampling(self) -> "Sampling | None":
        """The `sampling` of `jspec.decode`; None is greedy."""
        from jspec.types import Sampling

        if self.temperature == 0:
            return None
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)


def _within(name: str, value: float, low: float, high: float, why: str) -> None:
    if not low <= value <= high:  # NaN is outside too
        raise InputError(f"{name} is {value:g}; pass a number in {low:g} .. {high:g} ({why})")


def _at_least(name: str, value: int, least: int, why: str = "") -> None:
    if value < least:
        raise InputError(f"{name} is {value}; pass at least {least}{why and f' ({why})'}")
    if value >= 2**31:
        raise InputError(f"{name} is {value}; pass at most {2**31 - 1}")
