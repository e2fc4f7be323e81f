"""Turns with calls, as clients send and templates read them; fields without an effect."""

import json
import re
import threading
from types import SimpleNamespace

import fakes
import pytest
from desk import ROOM
from schema_suite import BYTES, accepts

import jspec
from jspec.processors import grammar
from jspec.serve import formats, forms, schemas
from jspec.serve.calls import Call
from jspec.serve.errors import APIError
from jspec.serve.limits import ServerLimits
from jspec.serve.request_parser import RequestParser
from jspec.serve.workers import Patience

LLAMA = (
    "{% for m in messages %}{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set call = m.tool_calls[0].function %}"
    '<call>{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}'
    "{% for key in call.arguments | items %}.{% endfor %}"
    "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)
"""As Llama 3.1's: a message is a call or a text."""
MISTRAL = (
    "{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}"
    "{% for c in m.tool_calls %}{% if c.id is not defined or c.id | length != 9 %}"
    "{{ raise_exception('ids have nine letters') }}{% endif %}"
    "[CALL]{{ c.function | tojson }}{{ c.id }}{% endfor %}{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
    "[RESULT]{{ m.content }}{{ m.tool_call_id }}{% else %}[{{ m.role }}]{{ m.content }}{% endif %}"
    "{% endfor %}"
)
ASKED = {"role": "user", "content": "Hi"}


def shown(template: str, *messages, **fields) -> str:
    """Returns what the model reads of a chat."""
    body = {"model": "bytes", "messages": [ASKED, *messages], "max_tokens": 1, **fields}
    asked = schemas.parse(schemas.ChatRequest, json.dumps(body).encode(), 999)
    parser = RequestParser(fakes.loaded(template), fakes.CONTEXT, ROOM)
    return bytes(parser.chat(asked, Patience(60)).prompts[0]).decode()


def alike(template: str, *messages) -> str:
    """The same, which Python's users may send too."""
    text = shown(template, *messages)
    assert fakes.loaded(template).chat.render([ASKED, *messages]) == text
    return text


def calling(arguments=None, **fields):
    function = {"name": "f"} if arguments is None else {"name": "f", "arguments": arguments}
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    message["tool_calls"][0] |= {"id": "a23456789", "type": "function"}
    return message | fields


def test_turns_with_calls_reach_the_template():
    empty = '<user>Hi<call>{"name": "f", "parameters": {}}'
    for arguments in (None, "", " \n", "{}", "null", {}):
        assert shown(LLAMA, calling(arguments)) == empty
    for arguments in ('{"at": 1}', {"at": 1}):
        assert shown(LLAMA, calling(arguments)) == empty.replace("{}", '{"at": 1}') + "."
    # Half a pair is not a letter.
    half = "\N{REPLACEMENT CHARACTER}"
    assert half in shown(LLAMA, calling('{"at": "\\ud83d"}'))
    said = {"role": "assistant", "content": "Ho"}
    for nothing in ({"tool_calls": []}, {"tool_calls": None}, {"annotations": [], "refusal": None}):
        assert shown(LLAMA, said | nothing) == "<user>Hi<assistant>Ho"
    # A text with a call, and a call as streams have it.
    streamed = calling("", content="I look.")
    streamed["tool_calls"][0]["index"] = 0
    assert shown(LLAMA, streamed) == empty
    result = {"role": "tool", "tool_call_id": "a23456789", "content": "fine"}
    assert "[CALL]" in shown(MISTRAL, calling(), result)
    with pytest.raises(APIError, match="one call at a time"):
        shown(LLAMA, calling() | {"tool_calls": calling()["tool_calls"] * 2})
    with pytest.raises(APIError, match="is not JSON"):
        shown(LLAMA, calling("{'at': 1}"))
    with pytest.raises(APIError, match="leaves out message 2"):
        shown("{{ messages[0].content }}", said)


SENT = {"id": "a23456789", "type": "function", "function": {"name": "look"}}
LOOP = "{% for m in messages %}%s{% endfor %}"
TEXTS = LOOP.replace(
    "%s",
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ '<' + c.function.name + '>' + "
    "c.function.arguments + ';' }}{% endfor %}{% else %}{{ m.content }}{% endif %}",
)
"""As DeepSeek's: arguments are a text."""
NULL = TEXTS.replace("if m.tool_calls %}", "if m.content == none %}")
SHOWN = LOOP.replace(
    "%s", "{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}{{ m.content }}"
)


def test_calls_are_written_in_the_form_that_the_template_shows():
    arguments = '{"at":  "Paris"}'
    for content in ({"content": None}, {}, {"content": ""}):
        call = SENT | {"function": {"name": "look", "arguments": arguments}}
        turn = {"role": "assistant", **content, "tool_calls": [call, call]}
        for template in (TEXTS, NULL):
            assert alike(template, turn) == f"Hi<look>{arguments};<look>{arguments};"
        # Neither a dict of Python's nor None.
        assert "'at'" not in alike(SHOWN, turn) and "None" not in alike(SHOWN, turn)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    developer = {"role": "developer", "content": parts}
    assert alike("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", developer) == (
        "user:Hi;system:ab;"
    )


def test_calls_and_thoughts_without_a_place_in_the_template_are_refused():
    texts = LOOP.replace("%s", "{{ m.content }}")
    call = {"role": "assistant", "content": "Ho", "tool_calls": [SENT]}
    joined = LOOP.replace("%s", "{{ 'a' + m.content }}")  # which null cannot be
    for template, content in ((texts, "Ho"), (joined, "Ho"), (joined, None), (joined, "")):
        with pytest.raises(APIError, match="no place for calls, and message 2 has one"):
            alike(template, call | {"content": content})
    thinking = {"role": "assistant", "content": "Ho", "reasoning_content": "hm"}
    with pytest.raises(APIError, match="no place for reasoning_content, which message 2 has"):
        alike(texts, thinking)
    for name in ("reasoning_content", "thinking", "reasoning"):
        template = LOOP.replace("%s", "{{ m.NAME }}{{ m.content }}").replace("NAME", name)
        assert alike(template, thinking) == "HihmHo"
    assert alike(texts, thinking | {"reasoning_content": ""}) == "HiHo"
    for wrong in ({"function": {}}, {"function": {"name": "f", "arguments": "{'a'}"}}):
        with pytest.raises(APIError, match=r"messages\[1\].tool_calls\[0\].function"):
            alike(TEXTS, call | {"tool_calls": [SENT | wrong]})


def test_an_id_of_the_servers_comes_back():
    for _ in range(20):
        call = formats._to_api(Call("f", "{}"))
        assert re.fullmatch("[0-9a-zA-Z]{9}", call["id"])
        result = {"role": "tool", "tool_call_id": call["id"], "content": "fine"}
        turn = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert call["id"] in shown(MISTRAL, turn, result)


def test_fields_that_ask_for_nothing_are_taken():
    others = {
        "best_of": 2, "echo": True, "functions": [{}], "length_penalty": 2.0, "metadata": {"a": 1},
        "modalities": ["audio"], "service_tier": "flex", "skip_special_tokens": False,
        "store": True, "suffix": "x", "use_beam_search": True, "typical_p": 0.5,
    }  # fmt: skip
    for name, values in schemas.NEUTRAL.items():
        for value in values:
            assert shown(fakes.TEMPLATE, **{name: value}).startswith("<user>Hi")
    for name, value in others.items():
        with pytest.raises(
            APIError, match=f"{name} is not a field of this path but for .*; leave it out"
        ):
            shown(fakes.TEMPLATE, **{name: value})
    # True is not a number.
    with pytest.raises(APIError, match="best_of is not a field of this path but for 1"):
        shown(fakes.TEMPLATE, best_of=True)
    with pytest.raises(APIError, match="depth is not a field of this path; leave"):
        shown(fakes.TEMPLATE, depth=3)


def test_any_json_object_is_a_form():
    """Within the states that a server has room for by default."""
    _, kind, schema = forms._form(schemas.AsObject(type="json_object"))
    assert kind == "json_schema"
    made = grammar.json_schema(schema, BYTES, max_states=1024)
    for text in (
        "{}", '{"a": 1, "é": "\\n", "b": true, "c": null}', '{"a": [1, 2.5, "x"], "b": []}',
        '{"rows": [{"a": 1, "b": "x"}, {}]}', '{"a": {"b": [1], "c": -1}}',
    ):  # fmt: skip
        assert isinstance(json.loads(text), dict) and accepts(made, text), text
    for text in ("", "[1]", "1", "{", '{"a": }', "{'a': 1}", '{"a": 1,}', '{"a": 1} x'):
        assert not accepts(made, text), text
    room = jspec.Room(grammar=grammar.Capacity(1024, 256))
    early = forms.Forms([], room, ServerLimits())
    form = early.specify((), schemas.AsObject(type="json_object"))
    assert form.param == "response_format" and early.find(form) is None
    # It is made before anybody asks for it.
    early.maker = SimpleNamespace(warm_up=lambda: None, make=lambda *_: [made])
    early.warm_up()
    for thread in threading.enumerate():
        if thread.name == "jspec-json-object":
            thread.join(20)
    assert early.find(form) == (made, None)
    asked = schemas.StructuredOutputs.model_validate({"json_object": True})
    assert forms._form(asked) == ("structured_outputs", "json_schema", schema)
    with pytest.raises(ValueError, match="give one of"):
        schemas.StructuredOutputs.model_validate({"json_object": True, "regex": "a"})
