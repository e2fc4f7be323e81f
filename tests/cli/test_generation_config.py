"""The sampling that a model's authors ask for, where a command or a request names none."""

import json
import shutil
from types import SimpleNamespace

import pytest

import jspec
from jspec import models
from jspec.models.huggingface.config_json import Settings
from jspec.sessions.generation_config import GenerationConfig
from jspec.sessions.run_settings import RunSettings

OWN = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.3}
OPTIONS = [text for name, value in OWN.items() for text in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture(scope="module")
def sampler(folder, tmp_path_factory):
    """The tiny model, whose authors ask for sampling."""
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("sampler") / "model")
    fields = {"eos_token_id": 0, "do_sample": True, "max_new_tokens": 3, **OWN}
    (copy / "generation_config.json").write_text(json.dumps(fields))
    return copy


def tokens(command, model, *arguments, method="autoregressive"):
    ran = command(
        "generate", "Once", "--json", "--model", model, "--max-new-tokens", 12, "--ignore-eos",
        "--method", method, *arguments,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return json.loads(ran.out)["tokens"], ran.err


def test_generate_samples_as_the_model_asks_and_a_named_value_wins(command, sampler, folder):
    own, said = tokens(command, sampler)
    assert "sets temperature 0.9, top_k 40, top_p 0.95, repetition_penalty 1.3" in said
    assert own == tokens(command, folder, *OPTIONS)[0]
    greedy, said = tokens(command, sampler, "--generation-config", "none")
    assert said == "" and greedy == tokens(command, folder)[0] != own
    named, said = tokens(command, sampler, "--temperature", 0, "--repetition-penalty", 1)
    assert named == greedy and "sets top_k 40, top_p 0.95;" in said


@pytest.mark.slow
def test_chat_samples_as_generate_does(command, sampler, talker):
    shutil.copy(talker / "chat_template.jinja", sampler)
    asked = ("--model", sampler, "--max-new-tokens", 8, "--method", "prompt_lookup")
    line = command("chat", *asked, stdin="Once").out
    assert line == command("generate", "Once", "--chat", *asked, "--no-compare").out
    assert line != command("chat", *asked, "--temperature", 0, stdin="Once").out
    (sampler / "chat_template.jinja").unlink()


def test_python_and_bench_stay_greedy(sampler):
    target = models.load(sampler)
    assert target.generation.get("temperature") == 0.9
    assert RunSettings().request.temperature == 0
    llm = jspec.LLM(target, drafter=jspec.Autoregressive())
    ask = {"max_new_tokens": 4, "stopping": jspec.Stopping(eos=())}
    want = jspec.decode(target.model, target.params, [[5, 6]], **ask)
    assert llm.decode([[5, 6]], **ask).result.tokens.tolist() == want.tokens.tolist()


def of(**fields):
    model = SimpleNamespace(vocab_size=100)
    return models.Loaded(model, None, eos=(2,), generation=Settings(fields, "the file"))


def test_tokens_that_are_not_written():
    target = of(suppress_tokens=[7, 100, 2], bad_words_ids=[[2], [5], [5, 6], [5, 101]])
    found = GenerationConfig.AUTO.banned_sequences(target)
    assert found == [[5], [5, 6], [7], [2]]  # an answer may end, unless that is suppressed
    assert not GenerationConfig.NONE.banned_sequences(target)
    settings = RunSettings().by_model(target, GenerationConfig.AUTO, set())
    (made,) = settings.request.processors
    model = jspec.testing.PrefixLM(vocab_size=100)
    ask = {"max_new_tokens": 40, "sampling": jspec.Sampling(1.0), "key": 0}
    written = jspec.decode(model, model.init(), [[1, 2]], processors=[made], **ask).tokens.tolist()
    assert not {5, 7, 2} & set(written[0])


def test_sampling_out_of_range_is_one_sentence():
    for fields, said in (
        ({"temperature": -1}, "temperature of the file is -1; pass .* 0 <= x <= 100, correct it"),
        ({"top_p": "a"}, "top_p of the file is 'a'; pass a number .* add --generation-config none"),
        ({"top_k": 2.5}, "top_k of the file is 2.5; pass an integer"),
        ({"repetition_penalty": True}, "repetition_penalty of the file is True"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            GenerationConfig.AUTO.sampling(of(**fields))
        assert not GenerationConfig.NONE.sampling(of(**fields))
    for fields in ({"suppress_tokens": [1.5]}, {"bad_words_ids": [["a"]]}, {"bad_words_ids": [1]}):
        with pytest.raises(jspec.InputError, match=f"{min(fields)}"):
            GenerationConfig.AUTO.banned_sequences(of(**fields))
    assert GenerationConfig.AUTO.sampling(of(top_k=-1)) == {"top_k": 0}
