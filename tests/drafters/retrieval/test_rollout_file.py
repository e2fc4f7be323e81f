"""Rollouts on disk: what is read is what was written, and a bad file is one sentence."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jspec
from jspec.drafters.retrieval import rollout_file

WORDS = {word: number for number, word in enumerate("abcdefgh")}
LAST = jspec.Rollouts(np.array([[3, 1, 4, 1], [5, 0, 0, 0], [0, 0, 0, 0]]), np.array([4, 1, 0]))


@pytest.fixture
def file(tmp_path):
    rollout_file.save(tmp_path / "last", LAST, WORDS)
    return tmp_path / "last"


def rewritten(file, **changes):
    """The file with other arrays or other metadata."""
    size = int.from_bytes(file.read_bytes()[:8], "little")
    said = json.loads(file.read_bytes()[8 : 8 + size])["__metadata__"]
    arrays = load_file(file)
    for name, value in changes.items():
        (said if isinstance(value, str) else arrays)[name] = value
    save_file(arrays, file, said)


def test_rows_are_drafted_from_as_they_were_written(file):
    read = rollout_file.load(file, WORDS)
    np.testing.assert_array_equal(read.lengths, LAST.lengths)
    np.testing.assert_array_equal(read.tokens, LAST.tokens)


def test_tokens_beyond_a_row_are_not_kept(tmp_path):
    given = jspec.Rollouts(np.array([[1, 99], [99, 99]]), np.array([1, 0]))
    rollout_file.save(tmp_path / "last", given, WORDS)
    assert rollout_file.load(tmp_path / "last", WORDS).tokens.tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("words", "changes", "told"),
    [
        (WORDS | {"z": 8}, {}, "holds tokens of another tokenizer than the target's; pass the"),
        (
            {"b": 0, "a": 1} | {word: place for word, place in WORDS.items() if place > 1},
            {},
            "holds tokens of another tokenizer",
        ),
        (WORDS, {"format": "jspec memory 2"}, "is not a file of rollouts; write it again with"),
        (WORDS, {"tokens": np.ones((3, 4), np.int32)}, "is damaged: its digest does not match"),
        (WORDS, {"lengths": np.zeros(3, np.int32)}, "is damaged"),
        (WORDS, {"others": np.zeros(3, np.int32)}, "is damaged"),
    ],
)
def test_a_file_of_another_kind_or_tokenizer_is_refused(file, words, changes, told):
    rewritten(file, **changes)
    with pytest.raises(jspec.InputError, match=told) as caught:
        rollout_file.load(file, words)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_each_byte_that_is_lost_or_changed_is_noticed(file):
    whole = file.read_bytes()
    for end in range(0, len(whole), 7):
        file.write_bytes(whole[:end])
        with pytest.raises(jspec.InputError):
            rollout_file.load(file, WORDS)
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            read = rollout_file.load(file, WORDS)
        except jspec.InputError:
            continue
        # A byte of the header that nothing is read from.
        np.testing.assert_array_equal(read.tokens, LAST.tokens)
        np.testing.assert_array_equal(read.lengths, LAST.lengths)


@pytest.mark.parametrize(
    ("tokens", "lengths", "told"),
    [
        (np.zeros((0, 4), int), np.zeros(0, int), "no tokens; pass rows that have"),
        (np.zeros((2, 4), int), np.zeros(2, int), "no tokens"),
        (np.zeros((2, 0), int), np.zeros(2, int), "no tokens"),
        (np.zeros((2, 4), int), np.array([5, 1]), r"a length of 5; pass lengths in 0 \.\. 4"),
        (np.full((2, 4), 8), np.array([4, 4]), r"tokens 8 \.\. 8, outside the vocabulary of ids"),
        (np.zeros((2, 4)), np.array([4, 4]), r"tokens \[2, 4\] of float64 and lengths \[2\] of"),
        (np.zeros((2, 4), int), np.array([4]), r"pass integers \[B, T\] and \[B\]"),
    ],
)
def test_empty_rollouts_are_not_saved(tmp_path, tokens, lengths, told):
    # No `Rollouts`, whose arrays the tests check when it is made.
    given: Any = SimpleNamespace(tokens=tokens, lengths=lengths)
    with pytest.raises(jspec.InputError, match=f"the rollouts have .*{told}"):
        rollout_file.save(tmp_path / "last", given, WORDS)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(jspec.InputError, match="cannot be read as rollouts"):
        rollout_file.load(tmp_path / "none", WORDS)
