import io
import json
import os
import sys

import pytest

from jspec._validate.errors import InputError
from jspec.cli import prompts


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


def test_json_is_never_continued_as_plain_text(tmp_path):
    talk = [{"role": "user", "content": "Hi"}]
    content = [
        '"two\\nlines"',
        '{"prompt": "text", "id": 3}',
        '{"prompt": [3, 4]}',
        json.dumps(talk),
        json.dumps({"messages": talk}),
        '"Hi," she said.',
        "{braces} are text",
        "42",
    ]
    wanted = ["two\nlines", "text", (3, 4), talk, talk, *content[-3:]]
    assert lines(tmp_path, "\n".join(content).encode()) == wanted


def test_other_lines_and_files_are_refused(tmp_path):
    for file in (tmp_path / "absent", tmp_path):
        with pytest.raises(ValueError, match=f"{file} cannot be read"):
            prompts.many(file)
    for content, said in (
        (b"", "holds no line"),
        (b"one\n\ntwo", "line 2 of .* is empty"),
        (b"one\n \t\n", "line 2 of .* is empty"),
        (b"one\ntwo\n\n", "line 3 of .* is empty"),
        (b"[]", "line 1 of .* is an empty list"),
        (b"[1, true]", "line 1 of .* neither of token ids nor of messages"),
        (b"[1.0]", "line 1 of .* neither of token ids"),
        (b'[{"role": "user"}, 3]', "line 1 of .* neither of token ids"),
        (b'{"text": "a"}', 'line 1 of .* object without a "prompt" or "messages"'),
        (b'{"prompt": "a", "messages": []}', 'without a "prompt" or "messages"'),
        (b'{"prompt": {"text": "a"}}', 'without a "prompt" or "messages"'),
        (b'{"prompt": 7}', "line 1 of .* has a int for a prompt"),
        (b'{"messages": []}', "line 1 of .* is an empty list"),
        (b'""', "line 1 of .* is empty"),
        (b"one\n\xff", "not UTF-8 .byte 0xff at 4.; encode"),
    ):
        with pytest.raises(ValueError, match=said):
            lines(tmp_path, content)


@pytest.mark.parametrize("argument", [None, "-"])
def test_a_prompt_may_be_piped(monkeypatch, argument):
    reader, writer = os.pipe()
    os.write(writer, "žába \n\n".encode())
    os.close(writer)
    with os.fdopen(reader) as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        assert prompts.one(argument)[0].content == "žába \n\n"


def test_without_anything_there_is_an_example(monkeypatch):
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert prompts.one(None)[0].content == prompts.EXAMPLE
        with pytest.raises(ValueError, match="standard input is empty"):
            prompts.one("-")
    monkeypatch.setattr(sys, "stdin", None)
    assert prompts.one(None)[0].content == prompts.EXAMPLE


def test_an_empty_or_broken_argument_or_pipe_is_refused(monkeypatch):
    for argument in ("", " \n", "\udcff"):
        with pytest.raises(ValueError, match=r"the prompt is (empty|not UTF-8)"):
            prompts.one(argument)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xc3")))
    with pytest.raises(ValueError, match="standard input is not UTF-8"):
        prompts.one("-")


class Words:
    def encode(self, sequence):
        return type("Encoding", (), {"ids": [len(word) for word in sequence.split("_") if word]})


def test_ids_have_to_suit_the_model():
    for content, said in (
        ("_", "gives no token"),
        ((1, 7), "token id 7, outside the vocabulary of 7; use ids 0 .. 6"),
        ((-1,), "token id -1, outside"),
        ((10**30,), "outside the vocabulary"),
        ("a_a_a_a", "has 4 tokens and the model's context is 3; shorten it by 1"),
    ):
        one = [prompts.Prompt((1, 2), "line 1"), prompts.Prompt(content, "line 2")]
        with pytest.raises(ValueError, match=f"^line 2.*{said}"):
            prompts.encode(one, Words(), vocab_size=7, context=3)
        assert prompts.encode(one[:1], Words(), 7, 2) == [[1, 2]]


def test_a_text_becomes_a_question_of_a_conversation():
    talk = [{"role": "user", "content": "Hi"}]
    system = {"role": "system", "content": "Short"}
    text, told = prompts.Prompt("Hi\n", "the prompt"), prompts.Prompt([system, *talk], "line 2")
    assert [one.content for one in prompts.ask([text, told])] == [talk, [system, *talk]]
    assert prompts.ask([text], "Short")[0].content == [system, *talk]
    assert prompts.ask([prompts.Prompt(talk, "line 1")], "Short")[0].content == [system, *talk]
    with pytest.raises(ValueError, match="line 2 has a system message and --system gives another"):
        prompts.ask([told], "Long")
    with pytest.raises(ValueError, match="line 3 is a list of token ids, which no chat template"):
        prompts.ask([prompts.Prompt((1, 2), "line 3")])


def test_a_conversation_is_rendered_and_a_refusal_names_its_place():
    talk = prompts.Prompt([{"role": "user", "content": "Hi"}], "line 2")
    assert prompts.encode([talk], Words(), 7, 3, lambda messages: [len(messages)]) == [[1]]

    def refuse(messages):
        raise InputError("no")

    with pytest.raises(ValueError, match=r"^line 2: no$"):
        prompts.encode([talk], Words(), 7, 3, refuse)
