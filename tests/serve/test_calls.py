"""Calls of functions: read out of answers, whole and streamed, and asked for by a grammar."""

import json
from dataclasses import replace

import fakes
import pytest
from desk import events, service
from schema_suite import BYTES, accepts

from jspec.processors import grammar
from jspec.serve import calls, forms, making
from jspec.serve.calls import BareCalls, Call, TaggedCalls

LOOK = Call("look", '{"at": "it"}')
FIND = Call("find", "{}")
ONE = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
TWO = '<tool_call>{"name": "find", "arguments": {}}</tool_call>'
BARE = '{"name": "look", "parameters": {"at": "it"}}'
NAMES = ("look", "find")


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@pytest.mark.parametrize(
    ("kind", "text", "said", "called"),
    [
        (TaggedCalls, "no call at all <b>", "no call at all <b>", []),
        (TaggedCalls, f"I look.\n\n{ONE}", "I look.", [LOOK]),
        (TaggedCalls, f"{ONE}\n{TWO}\n", "", [LOOK, FIND]),
        (TaggedCalls, f"{ONE} and on", " and on", [LOOK]),
        (TaggedCalls, ONE.removesuffix("\n</tool_call>"), "", [LOOK]),
        (TaggedCalls, "<tool_call>{'no': json}</tool_call> so", None, []),
        (
            TaggedCalls,
            f"<tool_call>broken</tool_call>{ONE}",
            "<tool_call>broken</tool_call>",
            [LOOK],
        ),
        (TaggedCalls, '<tool_call>{"name": "other", "arguments": {}}</tool_call>', None, []),
        (TaggedCalls, '<tool_call>{"name": ["look"], "arguments": {}}</tool_call>', None, []),
        (TaggedCalls, '<tool_call>{"name": "look", "arguments": 5}</tool_call>', None, []),
        (TaggedCalls, "<tool_call>" + "[" * 100_000, None, []),
        (
            TaggedCalls,
            '<tool_call>{"name": "look", "arguments": "{\\"at\\": \\"it\\"}"}',
            "",
            [LOOK],
        ),
        (
            TaggedCalls,
            '<tool_call>{"name": "look", "arguments": {"at": "</tool_call>ü"}}</tool_call>',
            "",
            [Call("look", '{"at": "</tool_call>ü"}')],
        ),
        # What is not a call lasts until the next one begins, and space behind words is text.
        (TaggedCalls, f'<tool_call>{{"a": 1}} x {ONE}', '<tool_call>{"a": 1} x', [LOOK]),
        (TaggedCalls, f"Hi {ONE}done \n", "Hidone \n", [LOOK]),
        (TaggedCalls, '<tool_call>{"a": 1} x', '<tool_call>{"a": 1} x', []),
        (
            TaggedCalls,
            '<tool_call>{"name": "look", "arguments": {"at": NaN}}</tool_call>',
            None,
            [],
        ),
        (
            TaggedCalls,
            '<tool_call>{"name": "look", "arguments": {"at": "\\ud800"}}</tool_call>',
            "",
            [Call("look", '{"at": "\\ud800"}')],
        ),
        (BareCalls, BARE, "", [LOOK]),
        (BareCalls, f'<|python_tag|>{BARE}; {{"name": "find"}}', "", [LOOK, FIND]),
        (BareCalls, f"Text and {BARE}", None, []),
        (BareCalls, f"{BARE} text", None, []),
        (BareCalls, '{"a": 1}', None, []),
        (BareCalls, "{", None, []),
        (BareCalls, "<|pyth", None, []),
        (BareCalls, "", "", []),
    ],
)
def test_calls_are_read_whatever_the_pieces(kind, text, said, called):
    """Streamed letter by letter, in threes and whole, what comes is the same."""
    for size in (1, 3, max(len(text), 1)):
        reader, shown, found = kind(NAMES), "", []
        parts = [text[at : at + size] for at in range(0, len(text), size)][:200]
        for part in [*parts, text[size * len(parts) :]]:
            more = reader.read(part, False)
            shown, found = shown + more[0], found + more[1]
        more = reader.read("", True)
        assert shown + more[0] == (text if said is None else said)
        assert found + more[1] == called


def test_text_does_not_wait_for_calls_that_do_not_come():
    reader = TaggedCalls(NAMES)
    assert reader.read("a < b, ", False)[0] == "a < b,"
    assert reader.read("<tool", False)[0] == ""
    assert reader.read("s>", False)[0] == " <tools>"
    assert BareCalls(NAMES).read("Yes, ", False)[0] == "Yes, "


def test_the_template_shows_how_calls_are_written():
    assert calls.parser_of("{{ '<tool_call>' }}") == calls.HERMES
    assert calls.parser_of("""{{ '"parameters": ' }}""") == calls.LLAMA
    assert calls.parser_of("<tool_call><function=x>") is None
    assert calls.parser_of("{{ messages }}") is None


def test_one_of_several_functions_by_a_grammar():
    """Each function with its own arguments, wherever its schema keeps its parts."""
    first = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/kind"}},
        "required": ["at"],
        "$defs": {"kind": {"enum": ["cat"]}},
    }
    second = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    made = grammar.json_schema(calls.schema_of([("look", first), ("find", second)]), BYTES)
    assert accepts(made, '{"name": "look", "arguments": {"at": "cat"}}')
    assert accepts(made, '{"name": "find", "arguments": {"ok": true}}')
    assert not accepts(made, '{"name": "look", "arguments": {"ok": true}}')
    assert not accepts(made, '{"name": "hide", "arguments": {"ok": true}}')


class Speaker(fakes.FakeDevice):
    """Writes what it was told to."""

    text = ""

    def step(self, waiting):
        tokens = [*self.text.encode(), fakes.END]
        found = []
        for held in self.rows:
            new = [] if held is None else tokens[held.done : held.done + self.pace]
            if held is not None:
                held.done += len(new)
            over = bool(new) and new[-1] == fakes.END
            found.append((new, fakes.Status.EOS if over else fakes.Status.RUNNING))
        return found


class MakingHere(making.Making):
    """Makes forms in this process: another one may take a busy machine longer than it may."""

    def made(self, asked, patience):
        return [making._made(self._spelled, *one, seconds=600) for one in asked]


@pytest.fixture(scope="module")
def client():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "Making", MakingHere)
        with service(Speaker(2), target=fakes.loaded(fakes.TAGGED)) as made:
            yield made


def chat(client, **body):
    messages = [{"role": "user", "content": "Hi"}]
    sent = {"model": "bytes", "messages": messages, "tools": [tool("look"), tool("find")]} | body
    return client.post("/v1/chat/completions", json=sent)


@pytest.mark.parametrize(
    ("text", "content", "called", "reason"),
    [
        ("Well.", "Well.", [], "stop"),
        (f"I look.\n{ONE}\n{TWO}", "I look.", [LOOK, FIND], "tool_calls"),
        (TWO, None, [FIND], "tool_calls"),
    ],
)
def test_calls_of_an_answer(client, text, content, called, reason):
    client.device.text = text
    choice = chat(client).json()["choices"][0]
    assert choice["message"]["content"] == content
    assert choice["finish_reason"] == reason
    functions = [call["function"] for call in choice["message"].get("tool_calls", [])]
    assert functions == [{"name": one.name, "arguments": one.arguments} for one in called]
    deltas, reasons = [], []
    for event in events(chat(client, stream=True, n=2)):
        for one in event["choices"]:
            if one["index"] == 1:
                deltas.append(one["delta"])
                reasons.append(one["finish_reason"])
    assert "".join(delta.get("content") or "" for delta in deltas) == (content or "")
    streamed = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["function"] for call in streamed] == functions
    assert [call["index"] for call in streamed] == [*range(len(called))]
    assert reasons[-1] == reason and not any(reasons[:-1])


def test_without_tools_text_is_text(client):
    client.device.text = ONE
    for asked in ({"tools": None}, {"tool_choice": "none"}):
        choice = chat(client, **asked).json()["choices"][0]
        assert choice["message"]["content"] == ONE and choice["finish_reason"] == "stop"


def test_one_of_several_is_required(client):
    """The answer is a call and nothing else, and comes as one."""
    seen, read = [], client.device.read
    client.device.read = lambda *of: seen.append(of[1]) or read(*of)
    client.device.text = json.dumps({"name": "look", "arguments": {"at": "it"}})
    try:
        asked = {"tool_choice": "required", "parallel_tool_calls": False}
        choice = chat(client, **asked).json()["choices"][0]
    finally:
        del client.device.read
    assert seen[0].grammar.what.startswith("the JSON schema")
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at": "it"}'}
    assert choice["finish_reason"] == "tool_calls"


def test_one_call_alone_is_for_those_who_ask_for_one(client):
    got = chat(client, parallel_tool_calls=False)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "parallel_tool_calls"
    assert "ask for one call by tool_choice" in got.json()["error"]["message"]
    client.device.text = ONE
    for free in ({"tools": None}, {"tool_choice": "none"}):
        assert chat(client, parallel_tool_calls=False, **free).status_code == 200


def test_unsupported_tools_are_named():
    with service(fakes.FakeDevice(1)) as client:
        for asked, param in (
            ({}, "tool_choice"),  # nobody knows how this model writes calls
            ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ):
            got = chat(client, **asked)
            assert got.status_code == 400, got.text
            assert got.json()["error"]["param"] == param


def test_a_template_of_its_own_shows_tools_and_their_results():
    """The default one need not know them."""
    plain = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
    plain += "{% endif %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    known = fakes.loaded(plain)
    named = replace(known.chat, named={"tool_use": fakes.TAGGED})
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a cat"}
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asked = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        result,
    ]
    with service(Speaker(2), target=replace(known, chat=named)) as client:
        client.device.text = ONE
        for messages in (asked[:1], asked):
            choice = chat(client, messages=messages).json()["choices"][0]
            assert choice["finish_reason"] == "tool_calls"
    with service(Speaker(2), target=known) as client:
        got = chat(client, messages=asked[:1], tools=[tool("look")], tool_choice="auto")
        assert (got.status_code, got.json()["error"]["param"]) == (400, "tools")
