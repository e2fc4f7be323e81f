"""Rows of tokens as sequences of one length, and the target's states of them on disk."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jspec.training import sequences, states
from jspec.training.distributions import observe
from jspec.training.sequences import Row


def texts(rows):
    return [Row(row, 0) for row in rows]


def text_of(part):
    return [row[live].tolist() for row, live in zip(part.tokens, part.live, strict=True)]


def test_rows_stay_whole_where_they_fit():
    rows = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16], [17]]
    part = sequences.fill(texts(rows), 4)
    # The row of seven is cut behind its fifth token; the lone token of the last teaches nothing.
    assert text_of(part) == [[1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16]]
    assert part.tokens.shape == (4, 5)
    assert (part.tokens[~part.live] == 0).all()
    assert part.counts(20).tolist() == [0, *[1] * 16, 0, 0, 0]
    assert text_of(sequences.fill(texts([[1, 2, 3, 4]]), 2)) == [[1, 2, 3]]
    # Streams are cut anywhere and overlap by a token.
    part = sequences.cut([[1, 2, 3], [4, 5, 6, 7, 8]], 3)
    assert text_of(part) == [[1, 2, 3, 4], [4, 5, 6, 7]]


def test_prompts_are_read_and_not_foretold():
    part = sequences.fill([Row([1, 2, 3, 4], 2), Row([5, 6, 7], 1), Row([8, 9], 2)], 6)
    assert part.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 0, 0, 0, 0, 0]]
    assert part.live.tolist() == [[False, False, True, True, False, True, True], [False] * 7]
    # A row that is cut keeps what it says of its later piece.
    part = sequences.fill([Row([1, 2, 3, 4, 5, 6], 4)], 2)
    assert part.live.tolist() == [[False] * 3, [False, True, True]]


def test_text_shorter_than_a_sequence_is_refused():
    rows = [[1, 2], [3, 4]]
    for make, given in ((sequences.fill, texts(rows)), (sequences.cut, rows)):
        with pytest.raises(ValueError, match=r"holds 4 tokens but one sequence needs 6.*<= 3"):
            make(given, 5)
        assert len(make(given, 3)) == 1


def test_files_of_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"tokens": [1, 2], "text": "a"}\n{"tokens": [3]}\n{"tokens": [4')
    assert sequences.holds_rows(path)
    assert sequences.read(path, 5) == texts([[1, 2], [3]])
    for bad in (
        *(f'{{"tokens": {wrong}}}' for wrong in ("[5]", "[true]", "3", "{}")),
        "{}",
        "[1]",
        "no",
    ):
        path.write_text('{"tokens": [1]}\n' + bad + "\n")
        with pytest.raises(ValueError, match="line 2 has no tokens of a vocabulary of 5"):
            sequences.read(path, 5)
    path.write_text('{"tokens": [1, 2, 3], "holds_prompt": true, "prompt_tokens": 2}\n')
    assert sequences.read(path, 5) == [Row([1, 2, 3], 2)]
    # `jspec generate --json` keeps the prompt apart.
    path.write_text('{"tokens": [3], "prompt_ids": [1, 2]}\n')
    assert sequences.read(path, 5) == [Row([1, 2, 3], 2)]
    path.write_text('{"text": "a"}\n')
    assert not sequences.holds_rows(path)
    assert not sequences.holds_rows(tmp_path)


def test_rows_are_held_out_by_their_content():
    rows = texts([[i, i + 1] for i in range(20)])
    kept, out = sequences.split(rows, 0.25)
    assert len(out) == 5 and sorted(kept + out) == rows
    again, same = sequences.split([*rows[::-1], rows[3]], 0.25)
    assert sorted(same) in (sorted(out), sorted([*out, rows[3]]))
    assert not any(row in out for row in again)


@pytest.fixture(scope="module")
def target():
    model = tiny.model()
    return model, tiny.params(model)


@pytest.fixture(scope="module")
def text():
    rows = np.random.default_rng(0).integers(0, tiny.VOCAB, (5, 7)).tolist()
    return sequences.fill(texts(rows), 6)


def store(folder, text, dtype="float32", target="me"):
    return states.States(folder, text, 16, dtype, target)


def test_states_on_disk_are_the_target_s(tmp_path, target, text):
    model, params = target
    held = store(tmp_path, text)
    assert list(held.fill(model, params, 2)) == [2, 4, 5]
    seen = observe(model, params, text.tokens, 3)
    expected = seen.hidden
    whole = held[np.arange(5)].hidden
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(held[np.array([3, 1])].hidden, whole[[3, 1]])
    assert held[np.arange(5)].distributions is None
    narrow = store(tmp_path / "narrow", text, "bfloat16")
    list(narrow.fill(model, params, 4))
    half = narrow[np.arange(5)].hidden.astype(np.float32)
    np.testing.assert_allclose(half, expected, rtol=1e-2)
    assert narrow.bytes_per_row * 2 == held.bytes_per_row
    lawful = states.States(
        tmp_path / "distributions", text, 16, "bfloat16", "me", num_target_tokens=3
    )
    list(lawful.fill(model, params, 4))
    found = lawful[np.array([4, 0])]
    np.testing.assert_array_equal(found.hidden, narrow[np.array([4, 0])].hidden)
    np.testing.assert_array_equal(
        found.distributions.tokens, seen.distributions.tokens[jnp.array([4, 0])]
    )
    np.testing.assert_allclose(
        found.distributions.probs, seen.distributions.probs[jnp.array([4, 0])], rtol=1e-5
    )
    np.testing.assert_allclose(seen.distributions.probs.sum(-1), 1, rtol=1e-5)


def test_storing_goes_on_where_a_kill_ended_it(tmp_path, target, text):
    whole, part = store(tmp_path / "whole", text), store(tmp_path / "part", text)
    list(whole.fill(*target, 2))
    next(part.fill(*target, 2))
    with (tmp_path / "part" / states.ARRAY).open("ab") as file:
        file.write(b"half a row")
    again = store(tmp_path / "part", text)
    assert len(again) == 2
    assert list(again.fill(*target, 2)) == [4, 5]
    assert (tmp_path / "part" / states.ARRAY).read_bytes() == (
        tmp_path / "whole" / states.ARRAY
    ).read_bytes()
    assert list(store(tmp_path / "part", text).fill(*target, 2)) == []


def test_states_of_something_else_are_refused(tmp_path, text):
    store(tmp_path, text)
    with pytest.raises(ValueError, match="target me -> you"):
        store(tmp_path, text, target="you")
    other = sequences.Sequences(text.tokens + 1, text.live)
    with pytest.raises(ValueError, match="text "):
        store(tmp_path, other)
    with pytest.raises(ValueError, match="dtype float32 -> float16"):
        store(tmp_path, text, "float16")
    settings = json.loads((tmp_path / states.SETTINGS).read_text())
    assert settings["shape"] == [5, 7, 16]


def test_a_full_disk_is_one_sentence(tmp_path, target, text, monkeypatch):
    held = store(tmp_path, text)
    next(held.fill(*target, 2))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(states.os, "fsync", full)
    with pytest.raises(RuntimeError, match=r"No space left on device.*first 2 rows are whole"):
        list(held.fill(*target, 2))
