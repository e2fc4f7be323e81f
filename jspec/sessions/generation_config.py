"""The sampling that a model's authors ask for, in generation_config.json or a GGUF file."""

from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number
from jspec.sessions import terminal

if TYPE_CHECKING:
    from jspec.models.load import Loaded

_BOUNDS: dict[str, Any] = {
    "temperature": (check_number, 0, 100),
    "top_k": (check_integer, -1, 2**31 - 1),
    "top_p": (check_number, 1e-6, 1),
    "min_p": (check_number, 0, 1),
    "repetition_penalty": (check_number, 1e-6, 100),
}
_FIX = "correct it, or add --generation-config none"


class GenerationConfig(StrEnum):
    """The sampling where a request names none. As in vLLM, `do_sample` is not read."""

    AUTO = "auto"
    NONE = "none"

    def sampling(self, target: "Loaded", names: Collection[str] = ()) -> dict[str, float]:
        """Returns a model's values except `names`, and says so."""
        fields, values = target.generation, {}
        for name, (check, *bounds) in _BOUNDS.items() if self == self.AUTO else ():
            if name not in names and (value := fields.get(name)) is not None:
                check(f"{name} of {fields.source}", value, *bounds, _FIX)
                values[name] = max(value, 0)
        if values:
            text = ", ".join(f"{name} {value:g}" for name, value in values.items())
            terminal.note(
                f"jspec: {fields.source} sets {text}; --generation-config none leaves it out"
            )
        return values

    def banned_sequences(self, target: "Loaded") -> list[list[int]]:
        """Returns the sequences of tokens that a model is not to write."""
        if self == self.NONE:
            return []
        fields, size = target.generation, target.model.vocab_size
        words = fields.list_of("bad_words_ids", list, [])
        if any(type(token) is not int for word in words for token in word):
            raise InputError(f"bad_words_ids of {fields.source} has other than token ids; {_FIX}")
        ends = [[end] for end in target.eos]  # an answer may end, as in `transformers`
        single = [[token] for token in fields.list_of("suppress_tokens", int, [])]
        every = [*(word for word in words if word not in ends), *single]
        # One beyond the vocabulary is never written.
        return [word for word in every if word and all(0 <= token < size for token in word)]
