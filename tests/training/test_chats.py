"""Rows of chat data as conversations that end with what the user wrote."""

import json

import refusals

from jspec.training import chats


def asked(fields, template=""):
    return json.loads(chats.row(json.dumps(fields), template, "line 1"))


def user(text):
    return [{"role": "user", "content": text}]


ANSWER = {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}


def test_a_row_asks():
    for fields, messages in (
        ({"instruction": "Add.", "input": "1 + 1", "output": "2"}, user("Add.\n\n1 + 1")),
        ({"instruction": "Add.", "instances": [{"input": "2", "output": "3"}]}, user("Add.\n\n2")),
        ({"instruction": "Hi", "instances": [{"input": "", "output": "x"}]}, user("Hi")),
        ({"id": "x", "question": " Why?\r\n", "answer": "So."}, user("Why?")),
        ({"text": "A task", "code": "x = 1"}, user("A task")),
        ({"messages": [SYSTEM, *user("a")], "prompt": "no"}, [SYSTEM, *user("a")]),
        ({"messages": (talk := [*user("a"), ANSWER, *user("c")])}, talk),
        ({"messages": [*user("a"), ANSWER]}, user("a")),
    ):
        assert asked(fields) == messages
    assert asked({"a": "x", "messages": user("b")}, "Say {a}.") == user("Say x.")


def test_a_row_that_asks_nothing_is_refused():
    refusals.check(
        [
            (("no", ""), "line 1 is not JSON"),
            (("{}", ""), "line 1 asks nothing; give it one of messages, instruction"),
            (("[1]", ""), "asks nothing"),
            (('{"messages": []}', ""), "asks nothing"),
            (('{"a": "x"}', "{b}"), "line 1 has no field 'b'"),
        ],
        lambda given: chats.row(*given, "line 1"),
    )
