"""`jspec warm`: the table that auto finds, runs that were stopped, and what is refused."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import jspec
from jspec import decoding, models
from jspec.cli import round_programs, train_progress, warming
from jspec.drafters.contrib import ngrams, vocabulary_table
from jspec.methods import ngram_tables
from jspec.models.fingerprint import fingerprint
from jspec.sessions import method_choice
from jspec.sessions import session as sessions
from jspec.sessions.conversations import from_prompt, render

VOCAB = 290


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache; auto's programs are not compiled, which is said, and parts are saved."""
    monkeypatch.setenv("JSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(warming, "compile_programs", lambda *_: print("compiled"))
    monkeypatch.setattr(warming, "_PAUSE", -1.0)
    return tmp_path / "cache" / ngram_tables.CACHE


@pytest.fixture(scope="module")
def target(talker):
    return models.load(talker)


def stopped_after(monkeypatch, parts):
    """Has Ctrl-C come after so many parts of the vocabulary."""

    class Stopped(train_progress.ProgressLines):
        def update(self, done, told):
            if done >= parts * vocabulary_table._TOKENS:
                raise KeyboardInterrupt

    monkeypatch.setattr(train_progress, "ProgressLines", Stopped)


def test_auto_finds_the_table_and_a_stopped_run_goes_on(
    command, talker, stranger, target, cache, tmp_path, monkeypatch
):
    assert jspec.LLM(target, "auto").drafter_params is None
    with monkeypatch.context() as patch:
        stopped_after(patch, 2)
        assert command("warm", talker).code == 130
    (file,) = cache.iterdir()
    weights = fingerprint(target.params, target.model)
    assert file.stem == weights
    begun = ngrams.read(file, weights, VOCAB)
    assert len(begun.singles) == 256 and begun.tokens.shape == (256, 8)
    ran = command("warm", talker)
    assert ran.code == 0 and f"290 tokens in {file}, 0.0 MB, after" in ran.out
    assert ran.out.endswith("compiled\n")
    with monkeypatch.context() as patch:
        stopped_after(patch, 0)
        ran = command("warm", talker)
    assert ran.code == 0 and ran.out == f"{file} has a line for each of 290 tokens already\n"
    whole = tmp_path / "whole"
    assert command("warm", talker, "--out", whole).code == 0
    for name, array in load_file(whole).items():
        np.testing.assert_array_equal(load_file(file)[name], array)
    asked = render(target, from_prompt("Explain it to me."))
    *_, lines = ngrams.tabulate(target.model, target.params, [asked, asked[:1]])
    drafter_params = jspec.LLM(target, "auto").drafter_params
    np.testing.assert_array_equal(drafter_params.tokens, lines.tokens)
    assert jspec.LLM(models.load(stranger), "auto").drafter_params is None


def test_without_a_template_tokens_stand_behind_what_a_text_begins_with(folder, target):
    plain = models.load(folder)
    assert warming.prefixes(plain) == [plain.tokenizer.encode("").ids]
    assert len(warming.prefixes(target)) == 2


def test_a_bundled_table_is_used_as_it_is(command, cache):
    ran = command("warm", "jspec-7m")
    assert (
        ran.code == 0
        and "ngrams.safetensors came with jspec, and auto takes it\ncompiled" in ran.out
    )
    assert not cache.exists()


def damaged(file, weights):
    file.write_bytes(b"not a table")


def of_another_vocabulary(file, weights):
    distributions = np.array([[[1]]]), np.array([[[0.9]]])
    ngrams.save(file, ngrams.build(np.array([[0]]), distributions, vocab_size=3, k=1), weights)


def of_a_text(file, weights):
    distributions = np.array([[[1], [2]]]), np.array([[[0.9], [0.8]]])
    ngrams.save(file, ngrams.build(np.array([[0, 1]]), distributions, VOCAB, k=8), weights)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (damaged, "; delete it, and make it again with jspec warm or jspec train head"),
        (of_another_vocabulary, "is a table of another model's distributions; make one"),
        (of_a_text, "the earlier lines have 8 candidates, 1 pairs and a vocabulary of 290; pass"),
    ],
)
def test_a_file_that_is_something_else_stays(command, talker, target, cache, made, said):
    weights = fingerprint(target.params, target.model)
    cache.mkdir(parents=True)
    made(cache / f"{weights}.safetensors", weights)
    before = (cache / f"{weights}.safetensors").read_bytes()
    ran = command("warm", talker)
    assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1
    assert (cache / f"{weights}.safetensors").read_bytes() == before
    if made is not of_a_text:
        with pytest.raises(jspec.InputError, match=said):
            jspec.LLM(target, "auto")


def test_a_full_disk_loses_nothing(command, talker, cache, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        stopped_after(patch, 1)
        command("warm", talker)
    (file,) = cache.iterdir()
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ngrams, "save_file", full)
        ran = command("warm", talker)
    assert ran.code == 1 and "could not be written (No space left on device); make room" in ran.err
    assert [(one, one.read_bytes()) for one in cache.iterdir()] == [(file, before)]
    monkeypatch.setenv("JSPEC_CACHE", str(file))
    ran = command("warm", talker)
    assert ran.code == 2 and "no folder that can be written; name one in JSPEC_CACHE" in ran.err
    ran = command("warm", talker, "--out", tmp_path / "absent" / "table")
    assert ran.code == 2 and "table cannot be written; name a file in a folder that exi" in ran.err


@pytest.mark.slow
def test_programs_of_chat_and_generate_are_compiled(talker, tmp_path, monkeypatch, command):
    monkeypatch.setenv("JSPEC_CACHE", str(tmp_path))
    ahead, compile_rounds = [], round_programs.compile_rounds

    def watched(*arguments):
        compile_rounds(*arguments)
        ahead.append(arguments[0]["policy"].widths)

    monkeypatch.setattr(round_programs, "compile_rounds", watched)
    config = '{"widths": [0, 3], "num_speculative_tokens": 3}'
    choice = method_choice.choose("prompt_lookup", config)
    with monkeypatch.context() as patch:
        patch.setattr(method_choice, "choose", lambda *_: choice)
        warming.compile_programs(str(talker), sessions.load(str(talker), None))
    assert ahead[-1] == (0, 3), "chat's programs are all there"
    made = decoding.decode_rounds._cache_size()
    asked = ["--model", talker, "--method", "prompt_lookup", "--speculative-config", config]
    assert command("generate", "Once", "--chat", *asked).code == 0
    assert decoding.decode_rounds._cache_size() == made
