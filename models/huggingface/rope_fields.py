"""Rotary positions in config.json, old and new."""

from math import inf, log, sqrt
from typing import Any

from jspec._validate.errors import InputError
from jspec.models.huggingface.config_json import Settings
from jspec.models.rope import LinearScaling, LongScaling, Rope, RopeScaling, Scaling, YarnScaling

_OWN = 8192
"""The longest context of models that were stretched linearly."""


def read(
    settings: Settings, head_dim: int, theta: float = 10000.0, partial: float | None = None
) -> Rope:
    """Returns the rotary positions of a model whose layers share them."""
    new, rope = settings.part("rope_parameters"), fields(settings)
    theta = rope.number(
        "rope_theta", new.number("rope_theta", settings.number("rope_theta", theta))
    )
    part = partial or 1.0
    for source in (settings, new, rope):
        part = source.number("partial_rotary_factor", part)
    if partial is None:
        rope.choice("partial_rotary_factor", [1.0], part)
    dim = int(head_dim * min(part, 2.0))
    if dim % 2 or not 0 < dim <= head_dim:
        raise InputError(
            f"{settings.source} gives a head_dim of {head_dim}, of which {dim} are turned; "
            "rotary embeddings need an even one"
        )
    return Rope(theta, scaling(rope, settings, dim), None if dim == head_dim else dim)


def fields(settings: Settings) -> Settings:
    """Returns the fields of the stretch."""
    # Who adds the old field to a new file, as cards of models say, means it.
    old = "rope_scaling" if settings.get("rope_scaling") else "rope_parameters"
    return settings.part(old)


def score_factor(settings: Settings) -> float:
    """Returns what DeepSeek's models multiply scores with where YaRN stretches the frequencies."""
    rope = fields(settings)
    stretch = scaling(rope, settings, 2)
    if not isinstance(stretch, YarnScaling) or not rope.get("mscale_all_dim"):
        return 1.0
    return length(stretch.factor, rope.number("mscale_all_dim")) ** 2


def length(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor of queries and keys, for a context that is so many times as long."""
    return 1.0 if factor <= 1 else 0.1 * scale * log(factor) + 1.0


def scaling(rope: Settings, settings: Settings, dim: int) -> Scaling | None:
    """Returns the stretch of the frequencies."""
    name = "rope_type" if rope.get("rope_type") else "type"
    kind = rope.choice(name, list(_SCALINGS), "default")
    return _SCALINGS[kind](rope, settings, dim // 2)


def original(rope: Settings, settings: Settings) -> int:
    """Returns the context that a model was trained with before it was stretched."""
    name = "original_max_position_embeddings"
    if settings.get(name) is not None:
        return settings.size(name)
    return rope.size(name, settings.size("max_position_embeddings"))


def context(settings: Settings, stretch: Scaling | None, stated: int) -> int:
    """Returns the context of a stretched model."""
    if isinstance(stretch, LongScaling):
        # A longer one takes the other divisors, for short texts too.
        return min(stated, stretch.original_context)
    if isinstance(stretch, YarnScaling):
        return max(stated, _times(stretch.original_context, stretch.factor))
    if isinstance(stretch, LinearScaling):
        rope, name = fields(settings), "original_max_position_embeddings"
        if any(source.get(name) is not None for source in (settings, rope)):
            return max(stated, _times(original(rope, settings), stretch.factor))
        # Nothing says what it was. Models of that time had 2,048 to 8,192 of their own.
        return _times(stated, stretch.factor) if stated <= _OWN else stated
    return stated


def _times(start: int, factor: float) -> int:
    """Returns a context that is so many times as long; positions are int32."""
    return int(min(start * factor, 2**31 - 1))


def _none(rope: Settings, settings: Settings, pairs: int) -> None:
    """Returns the field, `dynamic` too: it stretches only where contexts end anyway."""


def _linear(rope: Settings, settings: Settings, pairs: int) -> LinearScaling:
    return LinearScaling(rope.number("factor"))


def _llama3(rope: Settings, settings: Settings, pairs: int) -> RopeScaling:
    return RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_context=original(rope, settings),
    )


def _yarn(rope: Settings, settings: Settings, pairs: int) -> YarnScaling:
    start = original(rope, settings)
    factor = _factor(rope, settings, start)
    suggested = length(factor)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        names = "mscale", "mscale_all_dim"
        first, other = (length(factor, rope.number(name)) for name in names)
        suggested = first / other
    return YarnScaling(
        factor=factor,
        original_context=start,
        attention_factor=rope.number("attention_factor", suggested),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def _long(rope: Settings, settings: Settings, pairs: int) -> LongScaling:
    start = original(rope, settings)
    factor = _factor(rope, settings, start)
    suggested = 1.0 if factor <= 1 else sqrt(1 + log(factor) / log(start))
    return LongScaling(
        short=_divisors(rope, "short_factor", pairs),
        long=_divisors(rope, "long_factor", pairs),
        original_context=start,
        attention_factor=rope.number("attention_factor", suggested),
    )


def _factor(rope: Settings, settings: Settings, start: int) -> float:
    return rope.number("factor", settings.size("max_position_embeddings") / start)


def _divisors(rope: Settings, name: str, pairs: int) -> tuple[float, ...]:
    values: Any = rope.get(name, [])
    numbers = isinstance(values, list) and all(
        isinstance(x, int | float) and 0 < x < inf for x in values
    )
    if not numbers or len(values) != pairs:
        raise InputError(
            f"{rope.source} has {name} = {values!r:.80}; it has to be {pairs} positive numbers, "
            "one for each pair of lanes"
        )
    return tuple(float(value) for value in values)


_SCALINGS = {
    "default": _none,
    "dynamic": _none,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _long,
    "su": _long,
}
