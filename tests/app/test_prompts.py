import io
import os
import sys

import pytest

from jspec.app import prompts


def lines(tmp_path, content: bytes):
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    return [prompt.content for prompt in prompts.many(file)]


def test_lines_are_texts_or_lists_of_ids(tmp_path):
    content = "\ufeffone\r\n [3, 4] \n[aside] two \n[3, 4] three\u2028four\n".encode()
    wanted = ["one", (3, 4), "[aside] two ", "[3, 4] three\u2028four"]
    assert lines(tmp_path, content) == wanted
    assert lines(tmp_path, content.removesuffix(b"\n")) == wanted
    assert lines(tmp_path, b"[" * 100_000) == ["[" * 100_000]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no line"),
        (b"one\n\ntwo", "line 2 of .* is empty"),
        (b"one\n \t\n", "line 2 of .* is empty"),
        (b"one\ntwo\n\n", "line 3 of .* is empty"),
        (b"[]", "line 1 of .* is an empty list"),
        (b"[1, true]", "line 1 of .* not of token ids"),
        (b"[1.0]", "line 1 of .* not of token ids"),
        (b"one\n\xff", "not UTF-8 .byte 0xff at 4.; encode"),
    ],
)
def test_other_lines_are_refused(tmp_path, content, said):
    with pytest.raises(ValueError, match=said):
        lines(tmp_path, content)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    for file in (tmp_path / "absent", tmp_path):
        with pytest.raises(ValueError, match=f"{file} cannot be read"):
            prompts.many(file)


@pytest.mark.parametrize("argument", [None, "-"])
def test_a_prompt_may_be_piped(monkeypatch, argument):
    reader, writer = os.pipe()
    os.write(writer, "žába \n\n".encode())
    os.close(writer)
    with os.fdopen(reader) as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        assert prompts.one(argument)[0].content == "žába \n"


def test_without_anything_there_is_an_example(monkeypatch):
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert prompts.one(None)[0].content == prompts.EXAMPLE
        with pytest.raises(ValueError, match="standard input is empty"):
            prompts.one("-")
    monkeypatch.setattr(sys, "stdin", None)
    assert prompts.one(None)[0].content == prompts.EXAMPLE


@pytest.mark.parametrize("argument", ["", " \n", "\udcff"])
def test_an_empty_or_broken_argument_is_refused(argument):
    with pytest.raises(ValueError, match=r"the prompt is (empty|not UTF-8)"):
        prompts.one(argument)


def test_a_broken_pipe_of_text_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xc3")))
    with pytest.raises(ValueError, match="standard input is not UTF-8"):
        prompts.one("-")


class Words:
    def encode(self, sequence):
        return type("Encoding", (), {"ids": [len(word) for word in sequence.split("_") if word]})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("_", "gives no token"),
        ((1, 7), "token id 7, outside the vocabulary of 7; use ids 0 .. 6"),
        ((-1,), "token id -1, outside"),
        ((10**30,), "outside the vocabulary"),
        ("a_a_a_a", "has 4 tokens and the model's context is 3; shorten it by 1"),
    ],
)
def test_ids_have_to_suit_the_model(content, said):
    one = [prompts.Prompt((1, 2), "line 1"), prompts.Prompt(content, "line 2")]
    with pytest.raises(ValueError, match=f"^line 2.*{said}"):
        prompts.encode(one, Words(), vocab_size=7, context=3)
    assert prompts.encode(one[:1], Words(), 7, 2) == [[1, 2]]
