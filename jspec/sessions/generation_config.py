"""The sampling that a model's authors ask for, in generation_config.json or a GGUF file."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number
from jspec.sessions import terminal

if TYPE_CHECKING:
    from jspec.models.load import Loaded

_BOUNDS = {
    "temperature": (0, 100),
    "top_k": (-1, 2**31 - 1),
    "top_p": (1e-6, 1),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, 100),
}
_FIX = "correct it, or add --generation-config none"


class GenerationConfig(StrEnum):
    """The sampling where a request names none, in vLLM's words."""

    AUTO = "auto"
    """The model's."""
    NONE = "none"


def sampling(target: "Loaded", config: GenerationConfig) -> dict[str, float]:
    """Returns the values that a model asks for. As in vLLM, `do_sample` is not among them.

    Raises:
        InputError: if one is out of range.
    """
    found: dict[str, float] = {}
    if config != GenerationConfig.AUTO:
        return found
    for name, (low, high) in _BOUNDS.items():
        if (value := target.generation.get(name)) is not None:
            field = f"{name} of {target.generation.source}"
            check_number(field, value, low, high, _FIX)
            found[name] = max(value, 0)
    if "top_k" in found:
        check_integer(f"top_k of {target.generation.source}", found["top_k"], 0, None, _FIX)
    return found


def banned_sequences(target: "Loaded", config: GenerationConfig) -> list[list[int]]:
    """Returns the sequences of tokens that a model is not to write.

    Raises:
        InputError: if they are not lists of tokens.
    """
    if config != GenerationConfig.AUTO:
        return []
    fields, size = target.generation, target.model.vocab_size
    words = fields.listed("bad_words_ids", list, [])
    if any(type(token) is not int for word in words for token in word):
        raise InputError(f"bad_words_ids of {fields.source} has other than token ids; {_FIX}")
    ends = [[end] for end in target.eos]  # an answer may end, as in `transformers`
    single = [[token] for token in fields.listed("suppress_tokens", int, [])]
    every = [*(word for word in words if word not in ends), *single]
    # One beyond the vocabulary is never written.
    return [word for word in every if word and all(0 <= token < size for token in word)]


def note(target: "Loaded", values: Mapping[str, Any]) -> None:
    """Says which of a model's values a run has."""
    if values:
        said = ", ".join(f"{name} {value:g}" for name, value in values.items())
        terminal.note(
            f"jspec: {target.generation.source} sets {said}; --generation-config none leaves it out"
        )
