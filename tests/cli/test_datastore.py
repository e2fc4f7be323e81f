"""`jspec datastore build`, and method rest with what it makes."""

import json

import numpy as np
import pytest

import jspec
from jspec import datastore
from jspec.models import load

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


def test_a_datastore_is_built_again_and_serves_its_own_model_alone(
    command, folder, stranger, texts
):
    out = texts / "store.bin"  # next to its texts
    build = "datastore", "build", texts, "--model", folder, "--out", out
    assert (command(*build).code, command(*build).code) == (0, 0)
    chosen = json.dumps({"method": "rest", "datastore": str(out)})
    ran = command("generate", "x", "--model", stranger, "--speculative-config", chosen)
    assert ran.code == 2 and ran.err.count("\n") == 1
    assert "was built with another tokenizer than the target's" in ran.err
    # Few matches offer few nodes, alone and in a mixture.
    target, few = load(folder), {"num_matches": 1, "max_depth": 5}
    drafter = jspec.LLM(target, "rest", datastore=out, **few).drafter
    assert drafter.num_speculative_tokens == 5
    mixture = jspec.LLM(target, "spine+rest", datastore=out, **few).drafter
    assert mixture.drafters[1].num_speculative_tokens == 5
