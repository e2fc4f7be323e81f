"""Conversations in JSON rows, as chat data sets have them: what the model is to answer."""

import json
from collections.abc import Mapping
from typing import Any

from jspec._validate import plain_json
from jspec._validate.errors import InputError

QUESTIONS = ("instruction", "question", "prompt", "text")
"""Fields that hold a question, in the order in which they are looked for."""


def row(line: str, template: str, place: str) -> str:
    """Returns the conversation that one JSON row begins, as the JSON text of its messages.

    Args:
        line: a row with `messages`, of which the last is the user's; answers behind it are left
            out. Or with a question under one of `QUESTIONS`, to which `input`, its own or the first
            instance's, is added.
        template: how the row becomes the question, in `str.format` syntax; "" reads the fields.
        place: of the row, for messages.

    Raises:
        InputError: if the row is not JSON, or asks nothing.

    Example:
        >>> row('{"instruction": "Add 1 and 1.", "output": "2"}', "", "line 1")
        '[{"role": "user", "content": "Add 1 and 1."}]'
    """
    try:
        fields = plain_json.parse(line)
        question = template.format(**fields) if template else None
    except json.JSONDecodeError as error:
        raise InputError(f"{place} is not JSON: {error.msg}; put one object on each line") from None
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"{place} has no field {error} that the template names") from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{place} does not fit the template {template!r:.60}: {error}") from None
    messages = messages_to_answer(fields) if question is None else from_question(question)
    if not messages:
        names = ", ".join(("messages", *QUESTIONS))
        raise InputError(f"{place} asks nothing; give it one of {names}, or use a template")
    return json.dumps(messages, ensure_ascii=False)


def messages_to_answer(fields: Any) -> list[Mapping[str, Any]]:
    """Returns a row's messages up to the user's last; none without a question."""
    if not isinstance(fields, Mapping):
        return []
    turns = fields.get("messages")
    if isinstance(turns, list) and all(isinstance(turn, Mapping) for turn in turns):
        users = [place for place, turn in enumerate(turns) if turn.get("role") == "user"]
        return turns[: users[-1] + 1] if users else []
    questions = (fields[name] for name in QUESTIONS if isinstance(fields.get(name), str))
    question = next(questions, "").strip()
    instances = fields.get("instances") or [{}]
    extra = fields.get("input") or instances[0].get("input") or ""
    return from_question(f"{question}\n\n{extra}".strip()) if question else []


def from_question(question: str) -> list[Mapping[str, Any]]:
    """Returns a conversation of one question."""
    text = question.strip().replace("\r\n", "\n")
    return [{"role": "user", "content": text}] if text else []
