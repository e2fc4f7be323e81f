"""Conversations as prompts: rendering, ends of answers, and dropped turns."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError
from jspec.sessions.session import with_target

if TYPE_CHECKING:
    from jspec.models import Loaded
    from jspec.models.chat_template import ChatTemplate
    from jspec.sessions.session import Session

Message = Mapping[str, Any]
"""`{"role": "user", "content": "..."}`."""


def render(target: "Loaded", messages: Sequence[Message]) -> list[int]:
    """Returns token ids of a conversation, up to where the model is to write its turn."""
    return _template(target).encode(messages)


def write(
    target: "Loaded",
    messages: Sequence[Message],
    *,
    watch: Callable[[int], None] | None = None,
    **variables: Any,
) -> str:
    """Returns the same as text; arguments and errors as in `render`. Variables are the
    template's own, and `watch` may end it as it may `ChatTemplate.render`.
    """
    return _template(target).render(messages, watch=watch, **variables)


def encode(target: "Loaded", text: str) -> list[int]:
    """Returns token ids of a conversation's text, or of a part of it."""
    return _template(target).tokenizer.encode(text, add_special_tokens=False).ids


def _template(target: "Loaded") -> "ChatTemplate":
    if target.chat is None:
        raise InputError(
            "the model has no chat template, so it was not trained to answer; take an instruct "
            "model, smollm2-135m say, or give a text to continue"
        )
    return target.chat


def eos(target: "Loaded") -> tuple[int, ...]:
    """Returns the tokens that end an answer: the model's and the template's."""
    ends = () if target.chat is None else target.chat.end_of_turn
    tokens = (end for end in (*target.eos, *ends) if end < target.model.vocab_size)
    return tuple(dict.fromkeys(tokens))


def from_prompt(text: str, system: str | None = None) -> list[Message]:
    """Returns a conversation of one question, behind a system message if there is one."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def answering(session: "Session") -> "Session":
    """Returns the session with a target that stops at the end of its turn, and the parts of it."""
    from jspec.models import reasoning

    target = session.target
    talking = with_target(session, replace(target, eos=eos(target)))
    if target.chat is None:
        return talking
    marks, greeting = reasoning.marks_of(target.tokenizer, target.chat.template), []
    with suppress(InputError):
        greeting = render(target, from_prompt("Hi"))
    return replace(talking, marks=marks, lead=reasoning.lead(target.tokenizer, marks, greeting))


def note_unused(target: "Loaded") -> None:
    """Says on standard error that a chat model is used as a plain one."""
    if target.chat is not None:
        print(
            "jspec: this is a chat model, and the prompt is continued as plain text; pass --chat "
            "to get an answer",
            file=sys.stderr,
        )


class Drop(StrEnum):
    """The turns that may go. A turn is a question with what follows it, up to the next question."""

    NONE = "none"
    """None: what does not fit is refused."""
    OLDEST = "oldest"
    MIDDLE = "middle"
    """The oldest but for the first, which often says what the conversation is about."""


def fitting(
    messages: Sequence[Message],
    count: Callable[[Sequence[Message]], int],
    context: int | None,
    max_new_tokens: int,
    drop: Drop,
) -> list[Message]:
    """Returns a conversation without its oldest turns, if it has no room for an answer."""
    result = list(messages)
    if drop is Drop.NONE or context is None:
        return result
    if count(result) + min(max_new_tokens, context // 4) <= context:
        return result
    turns = [place for place, message in enumerate(result) if message["role"] == "user"]
    may_go = turns[1:] if drop is Drop.MIDDLE else turns
    for place in may_go[1:]:
        if count(result) <= context // 2:
            break
        result = [*messages[: may_go[0]], *messages[place:]]
    return result


def render_kept(
    target: "Loaded", messages: Sequence[Message], max_new_tokens: int, drop: Drop
) -> list[int]:
    """Renders the messages that stay; says on standard error how many do not."""
    rest = fitting(
        messages,
        lambda some: len(render(target, some)),
        target.model.context,
        max_new_tokens,
        drop,
    )
    note_dropped(len(messages) - len(rest))
    return render(target, rest)


def note_dropped(num_dropped: int) -> None:
    """Says how many messages were dropped, if any."""
    if num_dropped:
        what = "message was" if num_dropped == 1 else "messages were"
        print(
            f"jspec: {num_dropped} {what} dropped, since the conversation has outgrown the model's "
            "context",
            file=sys.stderr,
        )
