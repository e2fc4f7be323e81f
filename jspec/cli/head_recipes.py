"""The kinds of draft heads of `jspec train head`: module, objective and default settings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import optax

from jspec._validate.errors import InputError
from jspec.cli.train_settings import JobOption
from jspec.models import Loaded
from jspec.models.heads import (
    EAGLEConfig,
    EAGLEHead,
    LyannaConfig,
    LyannaHead,
    MedusaConfig,
    MedusaHeads,
    fresh,
)
from jspec.training.jobs import TrainingJob
from jspec.training.loop import Objective, Recipe
from jspec.training.medusa import Ahead
from jspec.training.unroll import Unrolled
from jspec.types import PyTree

STATE_LOSSES: Mapping[str, Callable[..., Any]] = {
    "squared": optax.losses.squared_error,
    "smooth": optax.losses.huber_loss,
}
"""The losses of states by name: the mean square, and EAGLE's smooth L1."""


@dataclass(frozen=True)
class HeadKind:
    """One kind of draft head, as it is trained."""

    build: Callable[..., Any]
    objective: Callable[..., Objective]
    begin: Callable[[Any, PyTree], PyTree] | None = None


_SIZES = (
    *("vocab_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "context"),
    *("norm_eps", "rope_theta", "rope_scaling", "tied"),
)
"""Fields that a head's layer takes over from its target."""


def _layer(target: Loaded) -> dict[str, Any]:
    """Returns one of the target's layers, without rare biases and norms."""
    model: Any = target.model
    config = model.config
    shape = {name: getattr(config, name) for name in _SIZES if hasattr(config, name)}
    attention = {"num_kv_heads": config.num_heads, "head_dim": config.head_dim}
    return {**attention, **shape, "num_layers": 1, "hidden_size": model.features}


def _eagle(target: Loaded, hot_tokens: int | None) -> EAGLEHead:
    hot = _hot(target, hot_tokens, _FEW_HOT)
    return EAGLEHead(EAGLEConfig(**_layer(target), hot_tokens=hot))


def _hot(target: Loaded, hot_tokens: int | None, default: int) -> int:
    """Returns the number of hot tokens: by default some of a large vocabulary, else 0."""
    vocab_size = target.model.vocab_size
    if hot_tokens is None:
        return default if vocab_size > _LARGE else 0
    if hot_tokens > vocab_size:
        raise InputError(
            f"hot_tokens is {hot_tokens} and the target's vocabulary has {vocab_size}; use at "
            f"most that many, or 0 for all"
        )
    return hot_tokens


def _lyanna(target: Loaded, hot_tokens: int | None, **shape: Any) -> LyannaHead:
    hot = _hot(target, hot_tokens, _HOT)
    return LyannaHead(LyannaConfig(**_layer(target), **shape, hot_tokens=hot))


def _medusa(target: Loaded, hot_tokens: int | None, **shape: Any) -> MedusaHeads:
    model: Any = target.model
    hot = _hot(target, hot_tokens, _FEW_HOT)
    return MedusaHeads(MedusaConfig(model.vocab_size, model.features, **shape, hot_tokens=hot))


def _ahead(target: Loaded, head: Any, places: int | None, **loss: Any) -> Objective:
    return Ahead(target.model, head, places=_places(target, places), **loss)


def _places(target: Loaded, places: int | None) -> int:
    """Returns the places of a row to score: some for a large vocabulary, else 0 (all)."""
    if places is None:
        return _SCORED if target.model.vocab_size > _LARGE else 0
    return places


def _unroll(
    target: Loaded, head: Any, unroll: int, state_loss: str, places: int | None, **loss: Any
) -> Objective:
    model: Any = target.model
    losses, places = STATE_LOSSES[state_loss], _places(target, places)
    return Unrolled(model, head, steps=unroll, state_loss=losses, places=places, **loss)


_LARGE, _HOT = 40_000, 32_000
"""Above so many tokens Lyanna's paper gives token info to so many alone (section 6.1)."""
_SCORED = 32
"""Places of a row that EAGLE's, Lyanna's and Medusa's heads score, if there are more."""
_FEW_HOT = 8192
"""Tokens that all heads but Lyanna's score, if there are more."""

KINDS: Mapping[str, HeadKind] = {
    "eagle": HeadKind(_eagle, _unroll),
    "lyanna": HeadKind(_lyanna, _unroll),
    "medusa": HeadKind(_medusa, _ahead, begin=fresh),
}


def default(settings: Iterable[JobOption]) -> TrainingJob:
    """Returns the job of a kind, where neither recipe nor options say otherwise."""
    parts: dict[str, dict[str, Any]] = {"recipe": {}, "shape": {}, "loss": {}, "job": {}}
    for setting in settings:
        parts[setting.part][setting.name] = setting.default
    recipe, job_fields = Recipe(**{"steps": 1, **parts["recipe"]}), parts["job"]
    return TrainingJob(recipe, parts["shape"], parts["loss"], **job_fields)
