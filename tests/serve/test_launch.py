"""The service over a real engine, in this process: its answers are those of `decode`."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import tiny
from desk import service

import jspec
from jspec.methods import LLM, METHODS
from jspec.models import Loaded
from jspec.models.chat_template import ChatTemplate
from jspec.models.detokenise import Detokeniser
from jspec.models.huggingface.config_json import Settings
from jspec.request import Request
from jspec.serve import launch
from jspec.serve.compiled import CompileCounter
from jspec.sessions.generation_config import GenerationConfig
from jspec.sessions.method_choice import Choice
from jspec.sessions.session import Session, with_target

SETTINGS = launch.ServeSettings(
    "tiny", rows=2, rounds=2, max_model_len=64, prefix_megabytes=1, max_logprobs=0,
    grammar_states=0, stop_states=8, stop_classes=8, penalties=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def session() -> Session:
    model = jspec.testing.PrefixLM(vocab_size=280, context=64)
    words = tiny.words(["Once upon a time there was a naïve cat."] * 9, 280)
    chat = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", words)
    target = Loaded(model, model.init(), words, eos=(0,), bos=None, chat=chat)
    method = METHODS["autoregressive"]
    return Session(LLM(target, drafter=jspec.Autoregressive()), Choice(method, {}))


def test_answers_are_those_of_decode_and_nothing_is_compiled_for_them(session):
    target, ask = session.target, {"model": "bytes", "prompt": "Once upon", "max_tokens": 8}
    ids = target.tokenizer.encode("Once upon").ids
    device, _ = launch.device_of(session, SETTINGS)
    device.go = threading.Event()
    device.warm_up()
    compiled = CompileCounter()
    with service(device, target=target, capacity=4) as client:
        said = [
            client.post("/v1/completions", json=ask | drawn).json()["choices"][0]["text"]
            for drawn in ({"temperature": 0, "seed": 5}, {"seed": 5})
        ]
        for last in range(3):  # the second finds out that they begin alike, the third goes on there
            alike = {"prompt": [1] * 40 + [2 + last], "max_tokens": 1}
            answer = client.post("/v1/completions", json=ask | alike).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 40
    assert not compiled.count
    want = jspec.decode(
        target.model, target.params, [ids] * 2, max_new_tokens=8,
        stopping=jspec.Stopping(eos=target.eos), key=5,
        sampling=jspec.Sampling(np.array([0.0, 1.0])), row_ids=np.array([0, 0]),
    )  # fmt: skip
    for text, tokens, count in zip(said, want.tokens.tolist(), want.lengths, strict=True):
        assert text == Detokeniser(target.tokenizer, ids).finish(tokens[:count])
    assert compiled.count, "the first look could not fail"


def test_a_templates_file_is_named_to_who_serves_it_and_to_no_client(session, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ raise_exception('no') }}")
    target = launch.chatting(session.target, file)
    with pytest.raises(jspec.InputError, match=r"^the chat template refuses the conversation"):
        target.chat.encode([{"role": "user", "content": "Hi"}])
    file.write_text("{% for %}")
    with pytest.raises(jspec.InputError, match=r"mine\.jinja is not a Jinja template"):
        launch.chatting(session.target, file)


@pytest.mark.slow
def test_the_servers_rows_never_write_what_the_model_is_not_to(session):
    fields = {"suppress_tokens": list(range(40, 280)), "repetition_penalty": 1.1}
    target = replace(session.target, generation=Settings(fields, "the file"))
    asked = with_target(session, target)
    with pytest.raises(jspec.InputError, match="the file has a repetition_penalty, for which --no"):
        launch.service_of(asked, SETTINGS)
    device, _ = launch.device_of(asked, SETTINGS)
    device.insert(
        0, device.read([5, 6], Request(max_tokens=8, temperature=1.0, seed=0, eos=()), None)
    )
    (delta,) = device.deltas(device.step(False), [0])
    assert delta.tokens and max(delta.tokens) < 40
    device, _ = launch.device_of(asked, replace(SETTINGS, generation_config=GenerationConfig.NONE))
    assert not device.engine.room.processors
