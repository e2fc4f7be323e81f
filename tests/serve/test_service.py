"""The server's answers and refusals, over a fake device."""

import asyncio
import gc
import json
from contextlib import contextmanager

import fakes
import numpy as np
import pytest
from desk import events, figures, recorded, service
from tokenizers import Tokenizer, decoders, models

from jspec._validate.errors import InputError
from jspec.processors.grammar import token_bytes
from jspec.request import Request
from jspec.serve import launch, response_stream, responses
from jspec.serve.answers import Answer, Spelling
from jspec.serve.device import log_probabilities
from jspec.serve.errors import APIError
from jspec.serve.formats import CompletionFormat
from jspec.serve.jobs import Delta, Job, TokenLogprobs
from jspec.types import Logprobs, Status


@pytest.fixture(scope="module")
def client():
    with service(fakes.FakeDevice(2), max_waiting=6) as made:
        yield made


def text_of(prompt: str, end: bool = True, **settings) -> str:
    """Returns what the fake answers."""
    asked = Request(**{"max_tokens": 16, "temperature": 1.0, "seed": 0, **settings})
    written = fakes.answer(list(prompt.encode()), asked)
    return bytes(token for token in written if token != fakes.END).decode()


def complete(client, **body):
    return client.post("/v1/completions", json={"model": "bytes", "prompt": "Hi", "seed": 1} | body)


def chat(client, **body):
    messages = [{"role": "user", "content": "Hi"}]
    sent = {"model": "bytes", "messages": messages, "seed": 1, "max_tokens": 12} | body
    return client.post("/v1/chat/completions", json=sent)


HI = "<user>Hi\n<assistant>"


def test_a_completion(client):
    got = complete(client).json()
    assert got["object"] == "text_completion" and got["model"] == "bytes"
    (choice,) = got["choices"]
    assert choice["text"] == text_of("Hi", seed=1)
    assert choice["finish_reason"] == ("stop" if sum(b"Hi") % 2 else "length")
    usage = got["usage"]
    assert usage["prompt_tokens"] == 2
    assert usage["total_tokens"] == 2 + usage["completion_tokens"]
    streamed = events(complete(client, stream=True))
    assert "".join(event["choices"][0]["text"] for event in streamed) == choice["text"]
    assert streamed[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    # Prompts of tokens, and fields that are null.
    null = dict.fromkeys(("stop", "logprobs", "stream", "echo"))
    two = complete(client, prompt=[[72, 105], [99]], max_tokens=4, **null).json()["choices"]
    assert [one["text"] for one in two] == [text_of(p, seed=1, max_tokens=4) for p in ("Hi", "c")]
    assert complete(client, prompt=[72, 105]).json()["choices"] == [choice]


def test_several_prompts_and_answers_keep_their_order(client):
    got = complete(client, prompt=["ab", "cd"], n=2, max_tokens=5).json()
    expected = [
        text_of(p, seed=1, row_id=row, max_tokens=5) for p in ("ab", "cd") for row in (0, 1)
    ]
    assert [choice["text"] for choice in got["choices"]] == expected
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2, 3]
    assert got["usage"]["prompt_tokens"] == 4


def test_without_a_seed_nothing_repeats_itself(client):
    got = complete(client, prompt=["ab"] * 3, n=2, seed=None, max_tokens=9).json()["choices"]
    assert len({choice["text"] for choice in got}) == 6


def test_unsupported_requests_are_never_ignored():
    asked = {
        "repetition_penalty": 1.5, "frequency_penalty": 1, "presence_penalty": -1,
        "logit_bias": {"5": 1}, "min_tokens": 3,
    }  # fmt: skip
    with service(room={"penalties": False}) as client:
        for name, value in asked.items():
            got = complete(client, **{name: value})
            assert got.status_code == 400 and got.json()["error"]["param"] == name
            assert "--no-penalties" in got.json()["error"]["message"]
        neutral = {"repetition_penalty": 1, "frequency_penalty": 0, "logit_bias": {}}
        assert complete(client, **neutral).status_code == 200


def test_settings_that_leave_no_token_are_the_clients_fault():
    class Masked(fakes.FakeDevice):
        def deltas(self, output, rows):
            return [Delta([], Status.MASKED) for _ in rows]

    with service(Masked()) as client:
        got = complete(client)
        assert got.status_code == 400
        assert got.json()["error"]["type"] == "invalid_request_error"
        streamed = events(complete(client, stream=True))
        assert streamed[-1]["error"]["type"] == "invalid_request_error"


def test_a_chat_is_streamed_in_pieces_of_the_whole_one(client):
    whole = chat(client, n=2).json()
    assert whole["usage"]["prompt_tokens"] == len(HI)
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["content"] == text_of(HI, seed=1, max_tokens=12)
    got = events(chat(client, n=2, stream=True, stream_options={"include_usage": True}))
    assert all(event["object"] == "chat.completion.chunk" for event in got)
    assert len({event["id"] for event in got}) == 1
    first, *middle, last = got
    assert [choice["delta"]["role"] for choice in first["choices"]] == ["assistant"] * 2
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in got[:-1])
    for index, expected in enumerate(whole["choices"]):
        mine = [c for event in middle for c in event["choices"] if c["index"] == index]
        assert len(mine) > 2
        said = "".join(choice["delta"].get("content", "") for choice in mine)
        assert said == expected["message"]["content"]
        reasons = [choice["finish_reason"] for choice in mine]
        assert reasons[-1] == expected["finish_reason"] and not any(reasons[:-1])


def test_log_probabilities(client):
    known = complete(client, logprobs=2, max_tokens=4).json()["choices"][0]
    assert "".join(known["logprobs"]["tokens"]) == known["text"]
    assert known["logprobs"]["token_logprobs"] == [-0.5] * 4
    assert known["logprobs"]["top_logprobs"][0] == {"A": -0.25, "B": -9999.0}
    assert known["logprobs"]["text_offset"] == [0, 1, 2, 3]
    got = chat(client, logprobs=True, top_logprobs=1, max_tokens=4).json()["choices"][0]
    content = got["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == got["message"]["content"]
    assert content[0]["top_logprobs"] == [{"token": "A", "logprob": -0.25, "bytes": [65]}]
    streamed = events(chat(client, logprobs=True, max_tokens=4, stream=True))
    tokens = [
        entry["token"]
        for event in streamed
        for choice in event["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert "".join(tokens) == got["message"]["content"]
    assert chat(client, max_tokens=4).json()["choices"][0]["logprobs"] is None
    # Who asked for none is sent no deltas for them.
    plain = events(chat(client, max_tokens=4, stream=True))
    assert all(choice["delta"] or choice["finish_reason"] for e in plain for choice in e["choices"])


def test_parts_of_letters_have_the_offset_of_their_letter():
    words = Tokenizer(models.BPE({"a": 0, "Ã": 1, "©": 2, "ÿ": 3}, []))
    words.decoder = decoders.ByteLevel()
    spelling = Spelling(token_bytes(words), words)
    known = TokenLogprobs(
        np.full(4, -0.5), np.tile([1, 2, 3], (4, 1)), np.tile([-0.1, -3.0, -5.0], (4, 1))
    )
    found = spelling.completion([0, 1, 2, 0], known, 3, 7)
    assert found["text_offset"] == [7, 8, 8, 9]
    # Three tokens of one text: the likeliest's.
    assert found["top_logprobs"][0] == {"\ufffd": -0.1}


def test_a_streams_offsets_are_those_of_the_whole():
    words = fakes.loaded().tokenizer
    spelling = Spelling(token_bytes(words), words)

    def shown(prompt, pieces):
        """Returns the text and the offsets of an answer that comes so."""
        form, answer, text, offsets = CompletionFormat("m", spelling, 0), None, "", []
        answer = Answer(0, words, prompt)
        for place, piece in enumerate(pieces, 1):
            known = TokenLogprobs(np.zeros(len(piece)), None, None)
            status = Status.LIMIT if place == len(pieces) else Status.RUNNING
            new = answer.add(Delta(piece, int(status), logprobs=known))
            choice = form.delta(answer, new, piece, known)
            text, offsets = text + choice["text"], offsets + choice["logprobs"]["text_offset"]
        return text, offsets

    said = "a😀b é猫 \u2028ok"
    ids = words.encode(said).ids
    places = [len(bytes(ids[:n]).decode(errors="ignore")) for n in range(len(ids))]
    for begin in (0, 2, 3):  # a prompt that ends within a letter
        whole = shown(ids[:begin], [ids[begin:]])
        assert whole[0] == (said if begin == 0 else said[1:])
        assert whole[1] == [place - min(begin, 1) for place in places[begin:]]
        for size in (1, 2, 3, 5):
            cut = [ids[n : n + size] for n in range(begin, len(ids), size)]
            assert shown(ids[:begin], cut) == whole


def test_an_event_is_one_line_for_every_reader():
    value = {"text": 'a\u2028b\u2029c\x85d"é\n'}
    written = response_stream._json(value)
    assert json.loads(written) == value and len(written.splitlines()) == 1 and "é" in written


def test_settings_come_to_the_row(client):
    with recorded(client.device) as seen:
        complete(
            client, temperature=0.5, top_k=-1, top_p=0.5, min_p=0.25, seed=-5, ignore_eos=True,
            frequency_penalty=1, presence_penalty=-1, repetition_penalty=1.5, min_tokens=3,
            logit_bias={"65": -100}, stop_token_ids=[7], stop=["zz"], max_tokens=9,
        )  # fmt: skip
        chat(client, max_tokens=None, max_completion_tokens=3)
        complete(client, seed=None)
        complete(client, seed=None)
    row = seen[0]
    assert (row.temperature, row.top_k, row.top_p, row.min_p, row.seed) == (0.5, 0, 0.5, 0.25, -5)
    assert (row.frequency_penalty, row.presence_penalty, row.repetition_penalty) == (1, -1, 1.5)
    assert (row.min_tokens, row.stop_token_ids, row.eos, row.max_tokens) == (3, (7,), (), 9)
    assert row.logit_bias == {65: -100}
    assert row.stop.strings == ("zz",)
    assert seen[1].max_tokens == 3
    assert seen[2].max_tokens == 16, "the API's default"
    assert seen[2].seed != seen[3].seed
    assert row.grammar is None


def test_forms_become_grammars(client):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with recorded(client.device) as seen:
        assert chat(client, response_format=form).status_code == 200
        assert chat(client, response_format={"type": "text"}).status_code == 200
        assert complete(client, structured_outputs={"choice": ["a", "b"]}).status_code == 200
        assert complete(client, structured_outputs={"regex": "[ab]+"}).status_code == 200
    kinds = ["" if row.grammar is None else row.grammar.what.split()[1] for row in seen]
    assert kinds == ["JSON", "", "choices", "regular"]


PICTURE = {"type": "image_url", "image_url": {}}
NO_TYPE = {"name": "n", "schema": {"type": "no such"}}
DEEP = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 9999}}
WRONG = {
    "completions": [
        ({"best_of": 2}, "best_of"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": "x" * 200}, "prompt"),
        ({"max_tokens": 1000}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"logprobs": 3}, "logprobs"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"07": 1}}, "logit_bias"),
        ({"min_tokens": 2**31}, "min_tokens"),
        ({"repetition_penalty": 1e-9}, "repetition_penalty"),
        ({"structured_outputs": {"json": "[" * 9999}}, "structured_outputs"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"messages": []}, "messages"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["ä" * 300]}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"enum": []}}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"]}, "ignore_eos": True}, "ignore_eos"),
        ({"stream_options": {"include_usage": True}}, None),
    ],
    "chat/completions": [
        ({"function_call": "auto"}, "function_call"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0].type"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"max_completion_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": NO_TYPE}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [DEEP]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
}


@pytest.mark.parametrize("path", WRONG)
def test_refusals_name_the_field(client, path):
    for change, param in WRONG[path]:
        got = (complete if path == "completions" else chat)(client, **{"max_tokens": 12} | change)
        assert got.status_code == 400, (change, got.text)
        error = got.json()["error"]
        assert error["param"] == param, error
        assert error["type"] == "invalid_request_error"
        assert error["message"] and "\n" not in error["message"] and len(error["message"]) < 400


def test_bodies_and_paths_that_are_no_request(client):
    for body in (
        b"", b"{", b'{"model": "bytes", "prompt": "a", "temperature": NaN}', b"[]", b'"x"', b"\xff",
        b"[" * 100_000, b'{"prompt": "a"}',
    ):  # fmt: skip
        got = client.post("/v1/completions", content=body)
        assert got.status_code == 400 and got.json()["error"]["message"]
    got = client.post("/v1/completions", content=b"x" * 10**7)
    assert got.status_code == 413 and "allowed" in got.json()["error"]["message"]
    for path, method, status in (("/v1/nothing", "GET", 404), ("/v1/completions", "GET", 405)):
        got = client.request(method, path)
        assert got.status_code == status and path in got.json()["error"]["message"]
    got = complete(client, model="gpt-4")
    assert (got.status_code, got.json()["error"]["code"]) == (404, "model_not_found")


def test_a_body_that_does_not_come(monkeypatch):
    monkeypatch.setattr(responses, "BODY_SECONDS", 0.05)

    class Never:
        async def stream(self):
            yield b"{"
            await asyncio.sleep(30)

    with pytest.raises(responses.APIError, match="not come") as refused:
        asyncio.run(responses.body_of(Never()))
    assert refused.value.status == 408


def test_requests_name_an_adapter_as_their_model():
    device = fakes.FakeDevice(2)
    with service(device, adapters=("sql", "poems"), capacity=16) as client:
        cards = client.get("/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["bytes", "sql", "poems"]
        assert [card["parent"] for card in cards] == [None, "bytes", "bytes"]
        assert client.get("/v1/models/sql").json()["id"] == "sql"
        assert cards[0]["max_model_len"] == fakes.CONTEXT
        assert client.get("/v1/models/other").status_code == 404
        asked, long = [], "a beginning that is long enough to be kept " * 2
        insert = device.insert
        device.insert = lambda row, arrival: (
            asked.append(arrival.adapter), insert(row, arrival),
        )[1]  # fmt: skip
        reused = []
        for name in ("bytes", "sql", "poems", "sql", "bytes"):
            reads = len(device.calls)
            for _ in range(2):
                got = complete(client, model=name, prompt=long + "x", max_tokens=4)
                assert got.json()["model"] == name
            assert chat(client, model=name).json()["model"] == name
            first = next(call for call in device.calls[reads:] if call[0] == "read")
            reused.append(first[2])
        assert asked == [0] * 3 + [1] * 3 + [2] * 3 + [1] * 3 + [0] * 3
        # The first request of each reads all of its prompt; later ones find what their own read.
        assert reused[:3] == [0, 0, 0] and min(reused[3:]) > 0
        wrong = complete(client, model="prose")
        assert wrong.status_code == 404
        told = "model is 'prose'; this server has 'bytes' and 'sql' and 'poems'"
        assert wrong.json()["error"]["message"] == told


def test_keys_that_no_header_brings_are_refused_at_the_start():
    for key in ("", "é", "\udcff", " a"):
        with pytest.raises(InputError, match=r"--api-key is .*; pass printable ASCII without"):
            launch.ServeSettings("tiny", api_key=key)


def test_a_key():
    with service(api_key="secret") as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            got = client.get("/v1/models", headers=headers)
            assert got.status_code == 401
            assert got.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/v1/models", headers={"Authorization": "secret"}).status_code == 401
        for scheme in ("Bearer", "bearer"):
            headers = {"Authorization": f"{scheme} secret"}
            assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.get("/health").status_code == 200
        assert client.get("/metrics").status_code == 200


def test_no_answer_and_no_line_is_longer_than_a_screen(client):
    client.lines.clear()
    long = "5" * 100_000
    answers = [
        complete(client, **{long: 1}), complete(client, model=long), complete(client, user=long),
        complete(client, logit_bias={long: 1}), complete(client, prompt=[[1], long]),
        chat(client, messages=[{"role": long, "content": ""}]), client.get(f"/v1/{long[:9000]}"),
        chat(client, tool_choice={"type": "function", "function": {"name": long}}),
        client.get(f"/v1/models/{long[:9000]}"),
    ]  # fmt: skip
    for got in answers:
        assert 400 <= got.status_code < 500 and len(got.content) < 1500, got.text
    assert max(len(json.dumps(line)) for line in client.lines) < 2000


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/nothing"])
def test_errors_of_key_and_path_are_readable_after_a_long_body(path):
    """A client that writes while the answer comes, and the connection ends, does not read it."""
    with service(api_key="secret") as client:
        read = []

        async def receive():
            if len(read) == 50:
                return {"type": "http.disconnect"}
            read.append(1)
            return {"type": "http.request", "body": b"x" * 100_000, "more_body": len(read) < 50}

        sent = []

        async def send(message):
            sent.append((len(read), message))

        scope = {
            "type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"",
            "client": ("here", 1), "app": client.app, "state": {}, "scheme": "http",
            "server": ("here", 1), "root_path": "",
        }  # fmt: skip
        asked = client.app(scope, receive, send)
        asyncio.run_coroutine_threadsafe(asked, client.service._loop).result(20)
        assert sent[0][0] == 50, "all was read before"
        assert sent[0][1]["status"] in (401, 404)


def test_a_client_learns_nothing_of_prompts_of_another_salt():
    def cached(**more):
        usage = complete(client, prompt="a" * 80, **more).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    with service(capacity=8) as client:
        assert [cached(cache_salt="mine") > 0 for _ in range(3)] == [False, False, True]
        assert [cached(cache_salt="yours") > 0 for _ in range(3)] == [False, False, True]
        assert cached() == 0
        assert complete(client, cache_salt="").status_code == 400


def test_metrics_by_vllms_names(client):
    before = figures(client)
    count = complete(client).json()["usage"]["completion_tokens"]
    after = figures(client)
    for name, grown in {
        "generation_tokens_total": count,
        "prompt_tokens_total": 2,
        "time_to_first_token_seconds_count": 1,
        "e2e_request_latency_seconds_count": 1,
        "request_time_per_output_token_seconds_count": 1,
        "spec_decode_num_drafts_total": 2,
        "spec_decode_num_draft_tokens_total": 3,
        "spec_decode_num_accepted_tokens_total": 1,
    }.items():
        key = f'vllm:{name}{{model_name="bytes"}}'
        assert after[key] - before[key] == grown, name
    assert after['vllm:num_requests_running{model_name="bytes"}'] == 0
    assert after['vllm:num_requests_waiting{model_name="bytes"}'] == 0
    position = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="bytes",position="0"}'
    assert after[position] >= 1


def test_every_request_is_one_line(client):
    client.lines.clear()
    complete(client, user="me")
    complete(client, stream=True)
    complete(client, echo=True)
    client.get("/health")
    assert [line["status"] for line in client.lines] == [200, 200, 400]
    assert client.lines[0]["user"] == "me"
    assert client.lines[0]["prompt_tokens"] == 2
    assert client.lines[1]["completion_tokens"] > 0
    assert "echo" in client.lines[2]["error"]


def test_a_failure_is_told_and_hurts_no_other(client):
    got = complete(client, prompt="X")
    assert got.status_code == 500
    assert "log" in got.json()["error"]["message"]
    streamed = events(complete(client, prompt="X", stream=True))
    assert streamed[-1]["error"]["type"] == "server_error"
    assert complete(client).status_code == 200


async def _ask(application, body, then, taken=None):
    """Calls the application as a server would; the client goes away when `then` returns.

    It takes each message, or waits for `taken`.
    """
    sent, first = [], []

    async def receive():
        if not first:
            first.append(1)
            return {"type": "http.request", "body": json.dumps(body).encode()}
        await then()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if taken is not None:
            await taken()

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "headers": [],
        "query_string": b"", "client": ("here", 1), "app": application, "state": {},
    }  # fmt: skip
    await application(scope, receive, send)
    return sent


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_row(stream):
    device = fakes.FakeDevice(1, pace=1)
    with service(device) as client:
        application = client.app
        body = {"model": "bytes", "prompt": "Hi", "max_tokens": 100, "stream": stream}
        device.go.clear()
        loop = client.service._loop

        async def departs():
            while not device.stepping.is_set():
                await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(_ask(application, body, departs), loop).result(20)
        device.go.set()
        assert complete(client, max_tokens=3).status_code == 200
        assert sum(call[0] == "step" for call in device.calls) < 50, "it did not run to its end"
        assert client.lines[0]["status"] == 499
        assert client.service.scheduler.num_running == 0


def test_a_client_that_takes_nothing_frees_its_row(monkeypatch):
    monkeypatch.setattr(response_stream, "SLOW_SECONDS", 0.05)
    device = fakes.FakeDevice(1, pace=1)
    with service(device) as client:
        body = {"model": "bytes", "prompt": "Hi", "max_tokens": 100, "stream": True}

        async def never():
            await asyncio.sleep(30)

        asked = _ask(client.app, body, never, never)
        asyncio.run_coroutine_threadsafe(asked, client.service._loop).result(20)
        assert complete(client, max_tokens=3).status_code == 200
        assert client.lines[0]["status"] == 499
        assert client.service.scheduler.num_running == 0


@contextmanager
def uncollected(kind):
    """A list that has the objects of a kind which the context made and left to the collector."""
    left = []
    gc.freeze()  # what was there before is not looked at, which would take seconds
    gc.disable()
    try:
        yield left
        left += [one for one in gc.get_objects() if isinstance(one, kind)]
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_request_leaves_nothing_for_the_collector(client):
    """Full collections are rare in a server: what waits for one is memory that grows."""
    long = [{"role": "user", "content": "a"}] * 1000
    assert chat(client, messages=long).status_code == 400
    complete(client)
    with uncollected((Job, APIError)) as left:
        for stream in (False, True) * 4:
            complete(client, stream=stream)
            # A body, and what was read of it, is not held until then.
            chat(client, messages=long)
            complete(client, prompt="a" * 10_000)
            complete(client, structured_outputs={"regex": "("})
    assert len(left) <= 2, "the last ones may still be on their way"


def test_an_answer_keeps_the_log_probabilities_of_its_row_alone():
    of_all = Logprobs(np.zeros((8, 48)), np.zeros((8, 48, 20), int), np.zeros((8, 48, 20)))
    kept = log_probabilities(of_all, 3, 2)
    parts = kept.token_logprobs, kept.top_tokens, kept.top_logprobs
    assert [part.base for part in parts] == [None] * 3
    assert [part.shape for part in parts] == [(2,), (2, 20), (2, 20)]


def test_a_request_that_names_no_sampling_has_the_models():
    own = {"temperature": 0.5, "top_p": 0.75, "repetition_penalty": 1.25}
    with service(sampling=own) as client, recorded(client.device) as seen:
        for fields in ({}, {"temperature": None}, {"temperature": 1.0, "top_p": 1}):
            complete(client, max_tokens=1, **fields)
            chat(client, max_tokens=1, **fields)
    found = [(row.temperature, row.top_p, row.repetition_penalty) for row in seen]
    assert found == [(0.5, 0.75, 1.25)] * 4 + [(1.0, 1.0, 1.25)] * 2
