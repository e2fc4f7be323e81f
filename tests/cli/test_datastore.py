"""`jspec datastore build`, and method rest with what it makes."""

import json

import numpy as np
import pytest

import jspec
from jspec import datastore
from jspec.models import load
from jspec.sessions import method_choice

STORIES = "Once upon a time there was a cat.<|endoftext|>She said: and slept."


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "a.txt").write_text(STORIES)
    (tmp_path / "b.jsonl").write_text('{"q": "a cat?", "a": "and slept."}\n')
    return tmp_path


def test_the_tokens_are_those_of_the_documents(command, folder, texts):
    out = texts / "store.bin"
    ran = command(
        "datastore", "build", texts / "a.txt", texts / "b.jsonl", "--model", folder,
        "--out", out, "--template", "{q} {a}",
    )  # fmt: skip
    assert ran.code == 0 and "3 documents" in ran.out and str(out) in ran.out
    words = load(folder).tokenizer
    store = datastore.load(out, words.get_vocab())
    tokens = np.asarray(store.corpus).tolist()
    assert words.decode(tokens, skip_special_tokens=False) == (
        f"{STORIES}<|endoftext|>a cat? and slept.<|endoftext|>"
    )
    assert tokens.count(0) == 3 and sorted(store.suffixes.tolist()) == list(range(len(tokens)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rest", "spine+rest"])
def test_rest_gives_the_tokens_of_plain_decoding(command, folder, texts, method):
    out = texts / "store.bin"
    assert command("datastore", "build", texts, "--model", folder, "--out", out).code == 0
    chosen = json.dumps({"method": method, "datastore": str(out), "num_speculative_tokens": 5})
    common = "generate", "Once upon a time", "--model", folder, "--json", "--no-compare"
    limits = "--max-new-tokens", 12, "--ignore-eos"
    ran = command(*common, *limits, "--speculative-config", chosen)
    plain = command(*common, *limits, "--method", "autoregressive")
    assert (ran.code, plain.code) == (0, 0), ran.err
    assert json.loads(ran.out)["tokens"] == json.loads(plain.out)["tokens"]


def test_a_datastore_next_to_its_texts_is_built_again(command, folder, texts):
    out = texts / "store.bin"
    build = "datastore", "build", texts, "--model", folder, "--out", out
    assert (command(*build).code, command(*build).code) == (0, 0)


def test_a_datastore_of_another_model_is_refused(command, folder, stranger, texts):
    out = texts / "store.bin"
    assert command("datastore", "build", texts, "--model", folder, "--out", out).code == 0
    chosen = json.dumps({"datastore": str(out)})
    ran = command(
        "generate", "x", "--model", stranger, "--method", "rest", "--speculative-config", chosen
    )
    assert ran.code == 2 and ran.err.count("\n") == 1
    assert "was built with another tokenizer than the target's" in ran.err


REFUSED = [
    (["{texts}/none.txt", "--out", "{texts}/x"], "none.txt does not exist"),
    (["{texts}/empty.txt", "--out", "{texts}/x"], "empty.txt holds no text"),
    (["{texts}/a.txt", "--out", "{texts}/no/x"], "is in no folder that exists"),
    (["{texts}/a.txt", "--out", "{texts}"], "cannot be written; name a file"),
    (["{texts}/a.txt", "--out", "{texts}/a.txt"], "is one of the texts; name another file"),
    (["{texts}", "--out", "{texts}/a.txt"], "is one of the texts; name another file"),
    (["{texts}/a.txt", "--out", "{texts}/x", "--model", "{texts}/a.txt"], "is a file"),
]


def test_invalid_datastores_are_refused(command, folder, texts):
    (texts / "empty.txt").write_text(" \n")
    for arguments, said in REFUSED:
        given = [argument.format(texts=texts) for argument in arguments]
        model = [] if "--model" in given else ["--model", folder]
        ran = command("datastore", "build", *given, *model)
        assert ran.code == 2 and ran.out == "" and said in ran.err and ran.err.count("\n") == 1
        assert not (texts / "x").exists()


def test_defaults_fit_what_was_given(command, folder, texts):
    """Few matches offer few nodes, alone and in a mixture."""
    out = texts / "store.bin"
    assert command("datastore", "build", texts, "--model", folder, "--out", out).code == 0
    target, few = load(folder), {"num_matches": 1, "max_depth": 5}
    drafter = jspec.LLM(target, "rest", datastore=out, **few).drafter
    assert drafter.num_speculative_tokens == 5
    mixture = jspec.LLM(target, "spine+rest", datastore=out, **few).drafter
    assert mixture.drafters[1].num_speculative_tokens == 5


def test_rest_without_a_datastore_says_what_is_missing():
    with pytest.raises(ValueError, match=r"method rest needs datastore.*jspec datastore build"):
        method_choice.choose("rest", None)
