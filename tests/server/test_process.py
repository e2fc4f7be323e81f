"""A real server process with the bundled model, asked by the real `openai` client."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import compiling
import fakes
import jax
import numpy as np
import pytest

import jspec
from jspec.app.detokenise import Detokeniser

openai = pytest.importorskip("openai")

START = "from jspec.app.cli import main; main()"
KEY = "a key"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["ok", "kind"],
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


class Process:
    """`jspec serve`, from its start until it is told to end."""

    def __init__(self, folder, *options):
        template = folder / "template.jinja"
        template.write_text(fakes.TEMPLATE)
        cache = {"JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [
                sys.executable, "-c", START, "serve", "--model", "jspec-800k", "--method",
                "prompt_lookup", "--rows", "2", "--max-model-len", "128", "--port", "0",
                "--api-key", KEY, "--max-grammar-states", "64", "--max-grammar-classes", "64",
                "--max-logprobs", "2", "--chat-template", str(template), *options,
            ],
            stdout=self.log, stderr=subprocess.PIPE, text=True,
            env=os.environ | compiling.ENVIRONMENT | cache,
        )  # fmt: skip
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"answers at http://127.0.0.1:(\d+)", line):
                self.port = int(found[1])
                break
        assert said and "answers at" in said[-1], "".join(said)
        self.said = said
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    def lines(self):
        """The lines of its log."""
        self.log.seek(0)
        return [json.loads(line) for line in self.log.read().splitlines()]

    def figure(self, name):
        text = self.client._client.get(f"{self.url}/metrics").text
        return float(re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)[1])

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    process = Process(tmp_path_factory.mktemp("server"))
    yield process
    process.process.kill()
    process.process.wait()
    process.process.stderr.close()
    process.client.close()


def test_the_openai_client_is_answered(server):
    """Completions and chats, whole and streamed, with log-probabilities, tools and a schema."""
    ask = dict(model="jspec-800k", max_tokens=24, temperature=0.0)
    prompt = "Once upon a time"
    whole = server.client.completions.create(prompt=prompt, logprobs=2, **ask)
    text, known = whole.choices[0].text, whole.choices[0].logprobs
    assert len(known.tokens) == whole.usage.completion_tokens == 24
    assert "".join(known.tokens) == text
    for own, beside in zip(known.token_logprobs, known.top_logprobs, strict=True):
        assert max(beside.values()) == pytest.approx(own), "greedy tokens are the likeliest"
    parts = server.client.completions.create(prompt=prompt, stream=True, **ask)
    assert "".join(part.choices[0].text for part in parts) == text
    stopped = server.client.completions.create(prompt=prompt, stop=text[10:20], **ask)
    assert stopped.choices[0].text == text[:10] and stopped.choices[0].finish_reason == "stop"

    chat = server.client.chat.completions
    drawn = dict(model="jspec-800k", messages=MESSAGES, max_tokens=12, seed=7, n=2)
    answers = chat.create(logprobs=True, top_logprobs=1, **drawn)
    assert answers.choices[0].message.content != answers.choices[1].message.content
    assert len(answers.choices[0].logprobs.content) <= 12
    pieces = list(chat.create(stream=True, stream_options={"include_usage": True}, **drawn))
    assert pieces[-1].usage.completion_tokens == answers.usage.completion_tokens
    for index, choice in enumerate(answers.choices):
        said = [c.delta.content or "" for p in pieces for c in p.choices if c.index == index]
        assert "".join(said) == choice.message.content

    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    shaped = chat.create(
        model="jspec-800k", messages=MESSAGES, max_tokens=64, seed=1, n=4, response_format=form
    )
    for choice in shaped.choices:
        assert set(json.loads(choice.message.content)) == {"ok", "kind"}
        assert choice.finish_reason == "stop"
    called = chat.create(
        model="jspec-800k", messages=MESSAGES, max_tokens=64, tools=[TOOL], tool_choice="required"
    ).choices[0]
    assert called.finish_reason == "tool_calls"
    assert json.loads(called.message.tool_calls[0].function.arguments)["kind"] in ("cat", "dog")
    with_tools = chat.create(model="jspec-800k", messages=MESSAGES, max_tokens=4, tools=[TOOL])
    assert with_tools.usage.prompt_tokens > answers.usage.prompt_tokens
    assert server.client.models.list().data[0].id == "jspec-800k"
    assert server.figure("jspec:compiled_programs_total") == 0


def test_an_answer_is_that_of_decode(server):
    """Greedy, and two that are drawn with a seed: the rows of one call."""
    target, text = jspec.models.load("jspec-800k"), "The little dog"
    ask = dict(model="jspec-800k", prompt=text, max_tokens=24)
    served = server.client.completions.create(**ask, temperature=0.0).choices
    served += server.client.completions.create(**ask, top_p=0.9, seed=5, n=2).choices
    ids = target.tokenizer.encode(text).ids
    result = jspec.decode(
        target.model, target.params, [ids] * 3, max_new_tokens=24, eos=target.eos, key=5,
        sampling=jspec.Sampling(np.array([0.0, 1.0, 1.0]), top_p=np.array([1.0, 0.9, 0.9])),
        rows=np.array([0, 0, 1]),
    )  # fmt: skip
    for row, choice in enumerate(served):
        tokens = result.tokens[row, : result.lengths[row]].tolist()
        assert choice.text == Detokeniser(target.tokenizer, ids).finish(tokens)


def test_errors_are_those_of_the_client(server):
    ask = dict(model="jspec-800k", prompt="Hi", max_tokens=4)
    with pytest.raises(openai.BadRequestError, match="best_of is not supported") as refused:
        server.client.completions.create(**ask, best_of=2)
    assert refused.value.param == "best_of"
    with pytest.raises(openai.NotFoundError, match="this server has"):
        server.client.completions.create(**ask | {"model": "other"})
    with pytest.raises(openai.AuthenticationError):
        server.client.with_options(api_key="wrong").completions.create(**ask)
    with pytest.raises(openai.BadRequestError, match="64 states"):
        server.client.completions.create(
            **ask, extra_body={"structured_outputs": {"choice": ["x" * 100]}}
        )
    big = server.client._client.post(
        f"{server.url}/v1/completions",
        content=b"x" * 10**7,
        headers={"Authorization": f"Bearer {KEY}"},
    )
    assert big.status_code == 413
    with socket.create_connection(("127.0.0.1", server.port)) as half_open:
        half_open.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        )
        assert server.client.completions.create(**ask).choices[0].text


def test_a_port_in_use_is_one_sentence(server):
    run = subprocess.run(
        [sys.executable, "-c", START, "serve", "--port", str(server.port)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1 and "in use" in run.stderr


def test_a_client_that_goes_away_and_a_server_that_is_told_to_end(server):
    """The last test of this server: it ends with what it has begun, and with exit code 0."""
    parts = server.client.completions.create(
        model="jspec-800k", prompt="One", max_tokens=100, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(parts))
    parts.close()
    deadline = time.monotonic() + 20
    while server.figure("vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.figure("vllm:num_requests_running") == 0
    answers = []

    def ask():
        got = server.client.completions.create(
            model="jspec-800k",
            prompt="Two",
            max_tokens=100,
            seed=1,
            extra_body={"ignore_eos": True},
        )
        answers.append(got.usage.completion_tokens)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while not server.figure("vllm:num_requests_running"):
        time.sleep(0.01)
    assert server.end() == 0
    for thread in threads:
        thread.join(20)
    assert answers == [100] * 4
    assert all(line["status"] in (200, 400, 401, 404, 413, 499) for line in server.lines())
