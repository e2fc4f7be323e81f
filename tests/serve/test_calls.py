"""Calls of functions: read out of answers, whole and streamed, and asked for by a grammar."""

import json
from dataclasses import replace

import fakes
import pytest
from desk import events, recorded, service
from schema_suite import BYTES, accepts

from jspec.processors import grammar
from jspec.serve import automaton_maker, calls, forms
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


def tagged(call: str) -> str:
    return f"<tool_call>{call}</tool_call>"


# Text, what of it is shown (None: all of it), and the calls.
READ = {
    TaggedCalls: [
        ("no call at all <b>", None, []),
        (f"I look.\n\n{ONE}", "I look.", [LOOK]),
        (f"{ONE}\n{TWO}\n", "", [LOOK, FIND]),
        (f"{ONE} and on", " and on", [LOOK]),
        (ONE.removesuffix("\n</tool_call>"), "", [LOOK]),
        (tagged("{'no': json}") + " so", None, []),
        (tagged("broken") + ONE, tagged("broken"), [LOOK]),
        (tagged('{"name": "other", "arguments": {}}'), None, []),
        (tagged('{"name": ["look"], "arguments": {}}'), None, []),
        (tagged('{"name": "look", "arguments": 5}'), None, []),
        ("<tool_call>" + "[" * 100_000, None, []),
        ('<tool_call>{"name": "look", "arguments": "{\\"at\\": \\"it\\"}"}', "", [LOOK]),
        (
            tagged('{"name": "look", "arguments": {"at": "</tool_call>ü"}}'),
            "",
            [Call("look", '{"at": "</tool_call>ü"}')],
        ),
        # What is not a call lasts until the next one begins, and space behind words is text.
        (f'<tool_call>{{"a": 1}} x {ONE}', '<tool_call>{"a": 1} x', [LOOK]),
        (f"Hi {ONE}done \n", "Hidone \n", [LOOK]),
        ('<tool_call>{"a": 1} x', None, []),
        (tagged('{"name": "look", "arguments": {"at": NaN}}'), None, []),
        (
            tagged('{"name": "look", "arguments": {"at": "\\ud800"}}'),
            "",
            [Call("look", '{"at": "\\ud800"}')],
        ),
    ],
    BareCalls: [
        (BARE, "", [LOOK]),
        (f'<|python_tag|>{BARE}; {{"name": "find"}}', "", [LOOK, FIND]),
        (f"Text and {BARE}", None, []),
        (f"{BARE} text", None, []),
        ('{"a": 1}', None, []),
        ("{", None, []),
        ("<|pyth", None, []),
        ("", "", []),
    ],
}


@pytest.mark.parametrize(
    ("kind", "text", "said", "called"), [(kind, *row) for kind in READ for row in READ[kind]]
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


class MakerHere(automaton_maker.AutomatonMaker):
    """Makes forms in this process: another one may take a busy machine longer than it may."""

    def make(self, asked, patience):
        return [automaton_maker._make(self._spelled, *one, seconds=600) for one in asked]


@pytest.fixture(scope="module")
def client():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "AutomatonMaker", MakerHere)
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
    shown = chat(client).json()["usage"]["prompt_tokens"]
    for asked in ({"tools": None}, {"tool_choice": "none"}):
        for more in ({}, {"parallel_tool_calls": False}):
            got = chat(client, **asked, **more).json()
            choice = got["choices"][0]
            assert choice["message"]["content"] == ONE and choice["finish_reason"] == "stop"
            assert got["usage"]["prompt_tokens"] == shown - len("[look][find]")


def test_one_of_several_is_required(client):
    """The answer is a call and nothing else, and comes as one."""
    client.device.text = json.dumps({"name": "look", "arguments": {"at": "it"}})
    asked = {"tool_choice": "required", "parallel_tool_calls": False}
    with recorded(client.device) as seen:
        choice = chat(client, **asked).json()["choices"][0]
    assert seen[0].grammar.what.startswith("the JSON schema")
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at": "it"}'}
    assert choice["finish_reason"] == "tool_calls"


def test_unsupported_tools_are_named(client):
    with service() as plain:
        for server, asked, param in (
            (plain, {}, "tool_choice"),  # nobody knows how this model writes calls
            (plain, {"tools": None, "tool_choice": "required"}, "tool_choice"),
            (client, {"parallel_tool_calls": False}, "parallel_tool_calls"),
        ):
            got = chat(server, **asked)
            assert got.status_code == 400, got.text
            assert got.json()["error"]["param"] == param
    assert "ask for one call by tool_choice" in got.json()["error"]["message"]


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
