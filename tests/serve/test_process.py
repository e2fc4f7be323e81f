"""A real server process with the bundled model.

A start compiles for more than ten seconds. What needs no model is asked of a fake device instead.
"""

import re
import threading
import time
from contextlib import suppress

import compiling
import pytest

import jspec
from benchmarks.serving import soak
from benchmarks.serving.process import ServerProcess
from benchmarks.serving.requests import mixed

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.slow

KEY = "a key"


class Process(ServerProcess):
    """A server of the bundled model, and a client of it."""

    def __init__(self, *options, rows=2, room=128):
        super().__init__(
            [
                "--model", "jspec-800k", "--rows", str(rows),
                "--max-model-len", str(room), "--max-grammar-states", "256",
                "--max-grammar-classes", "128", "--max-logprobs", "2",
                *(options if "--method" in options else ("--method", "prompt_lookup", *options)),
            ],
            compiling.environment(),
        )  # fmt: skip

    def client(self):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)


def test_a_client_that_goes_away_and_a_server_that_is_told_to_end():
    """It ends with what it has begun, and with exit code 0."""
    with Process("--api-key", KEY) as server, server.client() as client:

        def ask(**more):
            return client.completions.create(
                model="jspec-800k", prompt="One", max_tokens=100, seed=1,
                extra_body={"ignore_eos": True}, **more,
            )  # fmt: skip

        def running():
            return server.figures()["vllm:num_requests_running"]

        parts = ask(stream=True)
        next(iter(parts))
        parts.close()
        deadline = time.monotonic() + 20
        while running():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(ask().usage.completion_tokens))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        while not running():
            time.sleep(0.01)
        assert server.end() == 0
        for thread in threads:
            thread.join(20)
        assert answers == [100] * 4
        assert all(line["status"] in (200, 401, 499) for line in server.lines())


HANGS = (
    "{% for m in messages %}{{ m.content }}{% if m.content == 'hang' %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
"""A template that is at work for hours."""


def test_a_drafters_memory_survives_a_restart(tmp_path):
    """The same words in fewer rounds, and a place that cannot be written is said at once.

    What was learnt is written at the end, which comes whatever runs in threads.
    """
    memory, said, speeds = tmp_path / "memory", [], []
    (tmp_path / "hangs.jinja").write_text(HANGS)
    ask = dict(model="jspec-800k", prompt="Once upon a time", max_tokens=48, temperature=0.0)
    options = "--method", "suffix", "--chat-template", str(tmp_path / "hangs.jinja")
    options = *options, "--drain-seconds", "1", "--memory"

    def hang(process):
        with process.client() as client, suppress(openai.OpenAIError):
            messages = [{"role": "user", "content": "hang"}]
            client.chat.completions.create(model="jspec-800k", messages=messages)

    for _ in range(2):
        with Process(*options, str(memory)) as server:
            with server.client() as client:
                said.append(client.completions.create(**ask).choices[0].text)
            asking = threading.Thread(target=hang, args=(server,), daemon=True)
            asking.start()
            while not server.figures()["jspec:reading_running"]:
                time.sleep(0.02)
            assert server.end() == 0
            asking.join(20)
            speeds.append(server.lines()[0]["tokens_per_round"])
    assert said[0] == said[1]
    assert speeds[1] > 2 * speeds[0]
    with pytest.raises(RuntimeError, match="cannot be written"):
        Process(*options, str(tmp_path / "no" / "memory"))


def test_a_server_that_ends_says_whose_answers_it_cuts():
    ask = dict(model="jspec-800k", prompt="Once", max_tokens=900, temperature=1.0, seed=0, n=8)
    ask["extra_body"], errors = {"ignore_eos": True}, []

    def go(server):
        with server.client() as client, pytest.raises(openai.APIStatusError) as caught:
            client.with_options(max_retries=0).completions.create(**ask)
        errors.append(str(caught.value))

    with Process("--drain-seconds", "0", rows=1, room=1000) as server:
        asking = threading.Thread(target=go, args=(server,), daemon=True)
        asking.start()
        while not server.figures()["vllm:num_requests_running"]:
            time.sleep(0.01)
        assert server.end() == 0
        asking.join(20)
        (error,), last = errors, server.said[-1]
    assert "the server is shutting down" in error
    assert re.fullmatch(r"jspec: answers that were cut: [1-8]\n", last)


def test_a_mixed_load_loses_nothing_and_is_never_wrong():
    """All kinds of requests at once, some of whose clients go away."""
    target, asked = jspec.models.load("jspec-800k"), []
    # Little room for texts that are kept, so that some have to go.
    with Process("--prefix-megabytes", "2", rows=4, room=256) as server:
        for part in range(3):
            asks = mixed(40, target, "jspec-800k", part, 256)
            asked += asks
            counted, _ = soak.run(server, asks, together=16)
            soak.check(target, asks, counted, 256)
            assert counted["lost"] == counted["wrong"] == 0
            assert counted["answered"] + counted["left"] == 40
            assert counted["valid"] == counted["forms"]
            if part == 1:  # Until then the allocator takes more, the busier the machine the more.
                before = server.megabytes
        figures = server.figures()
        assert figures["jspec:compiled_programs_total"] == 0
        assert figures["vllm:num_requests_running"] == figures["vllm:num_requests_waiting"] == 0
        assert server.megabytes < before + 30
        assert server.end() == 0
        assert len(server.lines()) == 120
    kinds = {(ask.form is None, ask.stop is None, ask.leaves_after is None) for ask in asked}
    assert len(kinds) >= 4, "the mixture has all of them"


def test_the_comparison_sees_a_wrong_answer():
    target = jspec.models.load("jspec-800k")
    asks = [ask for ask in mixed(8, target, "jspec-800k", 0, 256) if ask.form is None]
    counted = {"texts": ["another text"] * len(asks), "reasons": ["length"] * len(asks)}
    soak.check(target, asks, counted, 256)
    assert counted["wrong"] == len(asks)
