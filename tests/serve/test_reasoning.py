"""Thoughts in answers to chats, whole and streamed, and the forms of turns that come back."""

import json

import fakes
import pytest
from desk import ROOM, events, service
from test_calls import MakerHere, Speaker, tool

from jspec.models.reasoning import THINK
from jspec.serve import forms, schemas
from jspec.serve.answers import Answer
from jspec.serve.jobs import Delta
from jspec.serve.request_parser import RequestParser
from jspec.serve.workers import Patience
from jspec.types import Status

CALL = '<tool_call>{"name": "look", "arguments": {"at": "%s"}}</tool_call>'
THOUGHT = f"Perhaps {CALL % 'Rome'}? No."
OPENED = fakes.TAGGED.replace("<assistant>{% endif", "<assistant>{{ '<think>' }}{% endif")
"""As Qwen3-Thinking's and DeepSeek's: the prompt ends within the thoughts."""


def loaded(template=fakes.TAGGED):
    target = fakes.loaded(template + "{# </think> #}")
    target.tokenizer.add_tokens(["<think>", "</think>"])
    return target


@pytest.fixture(scope="module")
def clients():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "AutomatonMaker", MakerHere)
        with (
            service(Speaker(2), target=loaded()) as free,
            service(Speaker(2), target=loaded(OPENED)) as within,
        ):
            yield {f"<think>{THOUGHT}</think>\n\n": free, f"{THOUGHT}</think>\n\n": within}


def ask(client, text, **body):
    client.device.text = text
    sent = {"model": "bytes", "messages": [{"role": "user", "content": "Hi"}]} | body
    return client.post("/v1/chat/completions", json=sent)


def test_thoughts_and_calls_are_apart_whole_and_streamed(clients):
    for begin, client in clients.items():
        for end, content, places in (("Fine.", "Fine.", []), (CALL % "Paris", None, ["Paris"])):
            asked = {"tools": [tool("look")]}
            (choice,) = ask(client, begin + end, **asked).json()["choices"]
            message, deltas = choice["message"], []
            for event in events(ask(client, begin + end, stream=True, **asked)):
                deltas += [one["delta"] for one in event["choices"]]
            assert message["reasoning_content"] == THOUGHT and message["content"] == content
            for name in ("reasoning_content", "content"):
                streamed = "".join(delta.get(name) or "" for delta in deltas)
                assert streamed == (message[name] or "")
            for called in (message.get("tool_calls", []), deltas):
                every = [one for part in deltas for one in part.get("tool_calls", [])]
                every = every if called is deltas else called
                assert [json.loads(one["function"]["arguments"])["at"] for one in every] == places
            assert choice["finish_reason"] == ("tool_calls" if places else "stop")


def test_an_answer_without_thoughts_has_no_such_field(clients):
    client = next(iter(clients.values()))
    (choice,) = ask(client, " Fine.").json()["choices"]
    assert choice["message"]["content"] == " Fine."
    assert "reasoning_content" not in choice["message"]
    sent = {"model": "bytes", "prompt": "Hi", "max_tokens": 99}
    client.device.text = "<think>a</think>b"
    assert client.post("/v1/completions", json=sent).json()["choices"][0]["text"] == (
        "<think>a</think>b"
    )


def test_arguments_of_a_named_function_come_behind_the_thoughts(clients):
    named = {"tools": [tool("look")], "tool_choice": tool("look") | {"function": {"name": "look"}}}
    for begin, client in clients.items():
        (choice,) = ask(client, begin + '{"at": "it"}', **named).json()["choices"]
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"at": "it"}'
        assert choice["message"]["reasoning_content"] == THOUGHT


def test_a_grammar_waits_for_the_end_of_thoughts():
    target = loaded(OPENED.replace("'<think>'", "'<think>' ~ rest | default('')"))
    parser = RequestParser(target, fakes.CONTEXT, ROOM)

    def lead(form="response_format", **more):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        body |= {form: {"type": "json_object"}, "chat_template_kwargs": more}
        asked = schemas.parse(schemas.ChatRequest, json.dumps(body).encode(), 999)
        return parser.chat(asked, Patience(60)).spec.lead

    opening, closing = map(target.tokenizer.token_to_id, ("<think>", "</think>"))
    assert lead() == (opening, (closing,), True)
    assert lead(rest="\n\n</think>\n\n") is None  # as with enable_thinking=False
    assert lead(rest="</think>a") == (opening, (closing,), False)
    # The automaton is made once for each way to begin.
    made = MakerHere(parser.spelled, 99)
    parser.forms.maker = made
    wanted = [parser.forms.specify([], json.dumps({"const": 1}), one) for one in (None, lead())]
    first, second = (parser.forms.make(one, Patience(60))[0] for one in wanted)
    assert [parser.forms.find(one)[0] for one in wanted] == [first, second]
    assert len(second.automaton.table) == len(first.automaton.table) + 2
    assert parser._marks is THINK


def test_where_marks_are_several_tokens_a_grammar_and_the_content_begin_at_once():
    parser = RequestParser(fakes.loaded(OPENED + "{# </think> #}"), fakes.CONTEXT, ROOM)
    for form, marks in (({}, THINK), ({"response_format": {"type": "json_object"}}, None)):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
        asked = schemas.parse(schemas.ChatRequest, json.dumps(body | form).encode(), 999)
        order = parser.chat(asked, Patience(60))
        assert (order.marks, order.spec.lead) == (marks, None)
        answer = Answer(0, parser.target.tokenizer, order.prompts[0], None, order.marks)
        assert answer.parts.read("{}", True) == (("{}", "") if marks else ("", "{}"))


def test_the_token_that_ends_an_answer_is_in_no_event():
    """By its reason: what a stop string ends was cut before, and its last token is text."""
    tokenizer, word = fakes.loaded().tokenizer, [*b"it"]
    for status, stops, text in (
        (Status.EOS, (), "i"),
        (Status.STOP, word[-1:], "i"),
        (Status.STOP, (), "it"),
        (Status.LIMIT, word[-1:], "it"),
    ):
        answer = Answer(0, tokenizer, [*b"Hi"], stops)
        pieces = [answer.add(Delta(word[:1])), answer.add(Delta(word[1:], status))]
        assert "".join(pieces) == answer.text == text
        assert answer.tokens == word
