"""Rows of chat data as conversations that end with what the user wrote."""

import json

import pytest

from jspec._validate.errors import InputError
from jspec.training import chats


def asked(fields, template=""):
    return json.loads(chats.row(json.dumps(fields), template, "line 1"))


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"instruction": "Add.", "input": "1 + 1", "output": "2"}, user("Add.\n\n1 + 1")),
        ({"instruction": "Add.", "instances": [{"input": "2", "output": "3"}]}, user("Add.\n\n2")),
        ({"instruction": "Hi", "instances": [{"input": "", "output": "x"}]}, user("Hi")),
        ({"id": "x", "question": " Why?\r\n", "answer": "So."}, user("Why?")),
        ({"text": "A task", "code": "x = 1"}, user("A task")),
        ({"messages": user("a")}, user("a")),
        (
            {"messages": [{"role": "system", "content": "s"}, *user("a")], "prompt": "no"},
            [{"role": "system", "content": "s"}, *user("a")],
        ),
        (
            {"messages": [*user("a"), {"role": "assistant", "content": "b"}, *user("c")]},
            [*user("a"), {"role": "assistant", "content": "b"}, *user("c")],
        ),
        ({"messages": [*user("a"), {"role": "assistant", "content": "b"}]}, user("a")),
    ],
)
def test_a_row_asks(fields, messages):
    assert asked(fields) == messages


def test_a_template_says_what_is_asked():
    assert asked({"a": "x", "messages": user("b")}, "Say {a}.") == user("Say x.")


@pytest.mark.parametrize(
    ("line", "template", "message"),
    [
        ("no", "", "line 1 is not JSON"),
        ("{}", "", "line 1 asks nothing; give it one of messages, instruction"),
        ("[1]", "", "asks nothing"),
        ('{"messages": []}', "", "asks nothing"),
        ('{"a": "x"}', "{b}", "line 1 has no field 'b'"),
    ],
)
def test_a_row_that_asks_nothing_is_refused(line, template, message):
    with pytest.raises(InputError, match=message):
        chats.row(line, template, "line 1")
