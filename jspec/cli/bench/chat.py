"""The words that a model reads: a conversation in its chat template, or the bare text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from jspec._validate.errors import InputError
from jspec.sessions.conversations import Message, from_prompt, render

if TYPE_CHECKING:
    from jspec.models import Loaded

Said = str | tuple[int, ...] | list[Message]
"""A turn: text, token ids, or all messages up to it."""


class Wording(Protocol):
    """Turns a conversation into the token ids of a prompt."""

    @property
    def name(self) -> str:
        """The kind of row, for the report."""
        ...

    def ids(self, turns: Sequence[Said], answers: Sequence[str]) -> list[int]:
        """Returns the prompt of the last turn; the earlier ones have been answered."""
        ...


@dataclass(frozen=True)
class Bare:
    """The text as it is, as `jspec generate` reads it; later turns follow the answers."""

    tokenizer: Any
    name: str = "bare text"

    def ids(self, turns: Sequence[Said], answers: Sequence[str]) -> list[int]:
        text = turns[0]
        if isinstance(text, tuple):
            return list(text)
        if not isinstance(text, str):
            raise InputError(
                "a prompt is a conversation and is asked without a chat template; give a text, or "
                "a model that has a template"
            )
        for answer, turn in zip(answers, turns[1:], strict=True):
            text += f"{answer}\n\n{turn}"
        return self.tokenizer.encode(text).ids


@dataclass(frozen=True)
class Templated:
    """The chat template of the model; token ids are taken as they are."""

    target: "Loaded"
    name: str = "chat template"

    def ids(self, turns: Sequence[Said], answers: Sequence[str]) -> list[int]:
        first = turns[0]
        if isinstance(first, tuple):
            return list(first)
        messages = from_prompt(first) if isinstance(first, str) else list(first)
        for answer, turn in zip(answers, turns[1:], strict=True):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": turn})
        return render(self.target, messages)


def wording(target: "Loaded", raw: bool = False) -> Wording:
    """Returns the chat template where the model has one, else the bare text."""
    if raw or target.chat is None:
        return Bare(target.tokenizer)
    templated = Templated(target)
    try:
        templated.ids(["Hello"], [])
    except InputError as error:
        raise InputError(f"{error}; pass --raw to leave the template out") from error
    return templated
