"""A stream that goes on at another server: what the client reads is one answer, read once."""

import json
import time
from collections import defaultdict

import fakes
import pytest
from desk import service

from jspec.serve.failover import Differs, SentEvents, asked, seeded

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "seed": 3, "max_tokens": 20}
ASKED = {
    "a completion": ("completions", {"prompt": "Once", "seed": 1, "max_tokens": 20}),
    "log-probabilities": (
        "completions", {"prompt": "Once", "seed": 1, "max_tokens": 20, "logprobs": 2}
    ),
    "several answers": (
        "completions", {"prompt": ["Once", "He"], "n": 2, "seed": 1, "max_tokens": 10}
    ),
    "usage": (
        "completions",
        {"prompt": "Once", "seed": 1, "stream_options": {"include_usage": True}},
    ),
    "a chat": ("chat/completions", CHAT | {"n": 2, "logprobs": True, "top_logprobs": 1}),
    "a call": ("chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required"}),
    "a refusal": ("completions", {"prompt": "Once", "max_tokens": 0}),
}  # fmt: skip


def stream(path, body, pace):
    """The events of one server, which writes so many tokens at a time."""
    with service(fakes.FakeDevice(pace=pace)) as client:
        sent = client.post(f"/v1/{path}", json={"model": "bytes", "stream": True, **body})
    if not sent.is_success:
        return [sent.content]
    return [event + b"\n\n" for event in sent.content.split(b"\n\n") if event]


def answer(events):
    """What a client has read: of each choice the text, and all beside it, in their order."""
    read, heads, ends = defaultdict(list), set(), []
    for event in events:
        data = event.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            ends.append("done")
            continue
        chunk = json.loads(data)
        if "choices" not in chunk:
            ends.append(chunk)
            continue
        heads.add((chunk["id"], chunk["created"]))
        if chunk["usage"]:
            ends.append(chunk["usage"])
        for choice in chunk["choices"]:
            mine = choice["index"]
            delta = choice.get("delta", choice)
            for name in ("role", "content", "text"):
                read[mine, name] += delta.get(name) or ""
            for call in delta.get("tool_calls", ()):
                read[mine, "name"] += call["function"].get("name", "")
                read[mine, "arguments"] += call["function"]["arguments"]
            for name, listed in (choice["logprobs"] or {}).items():
                read[mine, "logprobs", name] += listed or []
            if choice["finish_reason"]:
                read[mine, "end"] += [choice["finish_reason"]]
    assert len(heads) <= 1
    return {place: "".join(all_) if all(isinstance(one, str) for one in all_) else all_
            for place, all_ in read.items()}, ends  # fmt: skip


def given(events, sent):
    return [part for event in events if (part := sent.unread(event))]


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_read_once_wherever_its_server_dies(name):
    """Two servers cut the same answer into other events, and the first dies after any of them."""
    one, two, three = (stream(*ASKED[name], pace) for pace in (3, 5, 2))
    whole = answer(one)
    assert whole[0] or name == "a refusal"
    assert [len(one), len(two), len(three)] != [len(one)] * 3 or name == "a refusal"
    for cut in range(len(one) + 1):
        sent = SentEvents()
        read = given(one[:cut], sent)
        assert read == [*map(plain, one[:cut])]
        for again in range(0, len(two), 3):
            sent = SentEvents()
            read = given(one[:cut], sent)
            sent.start_over()
            read += given(two[:again], sent)
            sent.start_over()
            read += given(three, sent)
            assert answer(read) == whole
            assert all(chunk != read[place + 1] for place, chunk in enumerate(read[:-1]))
            assert sent.is_done


def plain(event):
    """An event that nothing was taken out of."""
    data = event.removeprefix(b"data: ").strip()
    if data == b"[DONE]" or data == event:
        return event
    return b"data: " + json.dumps(json.loads(data), ensure_ascii=False).encode() + b"\n\n"


def test_two_streams_one_after_the_other_are_not_an_answer():
    """The check of the test above finds what is sent twice, or not at all."""
    path, body = ASKED["a completion"]
    one, two = stream(path, body, 3), stream(path, body, 5)
    whole = answer(one)
    headless = [event.replace(b"cmpl-", b"") for event in one]
    assert answer(headless[:-2])[0] != whole[0]
    again = SentEvents(), SentEvents()
    twice = given(one[:3], again[0]) + given(one, again[0])
    assert answer(twice)[0] != whole[0]
    assert given(two, again[1])


def test_another_answer_is_refused():
    path, body = ASKED["a completion"]
    sent = SentEvents()
    given(stream(path, body, 3)[:3], sent)
    sent.start_over()
    with pytest.raises(Differs, match="another server writes"):
        given(stream(path, body | {"seed": 2}, 3), sent)


def test_a_request_without_a_seed_has_one():
    body, key = seeded(b'{"prompt": "Once", "seed": null}')
    drawn = json.loads(body)
    assert isinstance(drawn["seed"], int) and drawn["prompt"] == "Once"
    assert seeded(body) == (body, key)
    assert json.loads(seeded(b'{"prompt": "Once"}')[0])["seed"] != drawn["seed"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'"a"', b"\xff", b"[" * 100_000])
def test_what_is_no_request_is_passed_on(body):
    assert seeded(body) == (body, "")


@pytest.mark.parametrize("messages", [3, [], [None], [3, {"role": []}], [{"content": "x"}], "text"])
def test_messages_of_any_kind_have_a_key(messages):
    assert seeded(json.dumps({"messages": messages}).encode())[1]


def test_the_turns_of_a_conversation_have_one_key():
    def key(*texts, **more):
        roles = ("system", "user", "assistant", "user")
        messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
        return seeded(json.dumps({"messages": messages, **more}).encode())[1]

    first = key("Be short", "Hello")
    assert key("Be short", "Hello", "Hi!", "And?") == first
    others = {
        key("Be short", "Hallo"), key("Be long", "Hello"), key("Be short", "Hello", model="x"),
        key("Be short", "Hello", cache_salt="x"), first,
    }  # fmt: skip
    assert len(others) == 5
    begin = "Once upon a time " * 20
    longer = [seeded(json.dumps({"prompt": begin + end}).encode())[1] for end in ("", "and", "or")]
    assert len(set(longer)) == 1


BODY = {"model": "bytes", "prompt": "Once", "seed": 1}


def scope(path):
    headers = [(b"content-type", b"application/json")]
    return {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1),
    }  # fmt: skip


def test_an_application_is_asked_without_http():
    with service() as client:

        async def whole(path):
            sent = json.dumps(BODY).encode()
            parts = asked(client.app, scope(path), sent)
            return await anext(parts), [part async for part in parts if part]

        (status, headers), (body,) = client.portal.call(whole, "/v1/completions")
        assert status == 200 and headers["content-type"] == "application/json"
        over_http = client.post("/v1/completions", json=BODY).json()
        assert json.loads(body)["choices"] == over_http["choices"]
        (status, _), _ = client.portal.call(whole, "/v1/nothing")
        assert status == 404


def test_who_leaves_frees_the_row():
    with service(fakes.FakeDevice(1, pace=1)) as client:
        client.device.go.clear()

        async def leave():
            body = {"model": "bytes", "prompt": "Hh", "max_tokens": 100, "stream": True}
            parts = asked(client.app, scope("/v1/completions"), json.dumps(body).encode())
            assert (await anext(parts))[0] == 200
            assert client.device.stepping.wait(20)
            await parts.aclose()

        client.portal.call(leave)
        deadline = time.monotonic() + 20
        while not client.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client.lines[0]["status"] == 499
        client.device.go.set()
        assert client.post("/v1/completions", json=BODY).is_success
        steps = sum(call[0] == "step" for call in client.device.calls)
        assert steps < 50, "the row wrote on to its limit of 100 tokens"
