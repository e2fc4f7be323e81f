"""Which turns are dropped of a conversation that has outgrown the model's context."""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from jspec.sessions import conversations
from jspec.sessions.conversations import Message

if TYPE_CHECKING:
    from jspec.models import Loaded


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
    """A conversation without its oldest turns, if there is no room for an answer to all of it.

    System messages and the last question stay. So many turns are dropped that half of the context
    is free: a conversation is then read anew once in a while, and not at every turn.

    Args:
        messages: the conversation.
        count: gives the tokens of a conversation.
        context: most tokens that the model can place; None: no bound.
        max_new_tokens: of the answer. It need not have room for more than a quarter of the context.
        drop: the turns that may go.

    Returns:
        The messages that stay; they may still be too many.

    Example:
        >>> talk = [{"role": "user", "content": word} for word in ("one", "two", "three", "four")]
        >>> kept = fitting(talk, len, context=4, max_new_tokens=2, drop=Drop.OLDEST)
        >>> [message["content"] for message in kept]
        ['three', 'four']
    """
    kept = list(messages)
    if drop is Drop.NONE or context is None:
        return kept
    if count(kept) + min(max_new_tokens, context // 4) <= context:
        return kept
    turns = [place for place, message in enumerate(kept) if message["role"] == "user"]
    may_go = turns[1:] if drop is Drop.MIDDLE else turns
    for place in may_go[1:]:
        if count(kept) <= context // 2:
            break
        kept = [*messages[: may_go[0]], *messages[place:]]
    return kept


def render(
    target: "Loaded", messages: Sequence[Message], max_new_tokens: int, drop: Drop
) -> list[int]:
    """`conversations.render` of the messages that stay; says on standard error how many do not."""
    kept = fitting(
        messages,
        lambda some: len(conversations.render(target, some)),
        target.model.context,
        max_new_tokens,
        drop,
    )
    note(len(messages) - len(kept))
    return conversations.render(target, kept)


def note(num_dropped: int) -> None:
    """Says how many messages were dropped, if any."""
    if num_dropped:
        what = "message was" if num_dropped == 1 else "messages were"
        print(
            f"jspec: {num_dropped} {what} dropped, since the conversation has outgrown the model's "
            "context",
            file=sys.stderr,
        )
