"""Conversations as prompts, for every command that talks to a chat model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError

if TYPE_CHECKING:
    from jspec.models import Loaded
    from jspec.models.chat_template import ChatTemplate
    from jspec.sessions.session import Session

Message = Mapping[str, Any]
"""`{"role": "user", "content": "..."}`."""


def render(target: "Loaded", messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation, up to where the model is to write its turn.

    Args:
        target: a model with a chat template.
        messages: at least one.

    Raises:
        InputError: if the model has no template, or the template refuses the messages.
    """
    return _template(target).encode(messages)


def written(
    target: "Loaded",
    messages: Sequence[Message],
    *,
    watch: Callable[[int], None] | None = None,
    **variables: Any,
) -> str:
    """The same as text; arguments and errors as in `render`. Variables are the template's own, and
    `watch` may end it as it may `ChatTemplate.render`.
    """
    return _template(target).render(messages, watch=watch, **variables)


def encode(target: "Loaded", text: str) -> list[int]:
    """Token ids of a conversation's text, or of a part of it: the template wrote every token."""
    return _template(target).tokenizer.encode(text, add_special_tokens=False).ids


def _template(target: "Loaded") -> "ChatTemplate":
    if target.chat is None:
        raise InputError(
            "the model has no chat template, so it was not trained to answer; take an instruct "
            "model, smollm2-135m say, or give a text to continue"
        )
    return target.chat


def eos(target: "Loaded") -> tuple[int, ...]:
    """The tokens that end an answer: the model's end tokens, and the template's end of a turn."""
    ends = () if target.chat is None else target.chat.end_of_turn
    return tuple(dict.fromkeys((*target.eos, *ends)))


def prompted(text: str, system: str | None = None) -> list[Message]:
    """A conversation of one question, behind a system message if there is one."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def answering(session: "Session") -> "Session":
    """The session with a target that stops at the end of its turn."""
    target = session.target
    return replace(session, target=replace(target, eos=eos(target)))


def note_unused(target: "Loaded") -> None:
    """Says on standard error that a chat model is used as if it were none."""
    if target.chat is not None:
        print(
            "jspec: the model has a chat template, and the prompt is continued without it; "
            "--chat asks the model instead",
            file=sys.stderr,
        )
