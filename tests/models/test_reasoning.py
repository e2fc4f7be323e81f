"""Answers in parts, by the marks of each family, and the tokens that end them."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from jspec.models import reasoning
from jspec.models.detokenise import Detokeniser
from jspec.models.reasoning import THINK, Parts, marks_of
from jspec.types import Status

HARMONY, GEMMA = reasoning.FAMILIES[:2]
FINAL = "<|start|>assistant<|channel|>final <|constrain|>json<|message|>"
CASES = [
    (THINK, None, "<think>\nI add.\n\nTwice.\n</think>\n\nFour \n", "I add.\n\nTwice.", "Four \n"),
    (THINK, None, "\n<think>\n\n</think>\n\nFour", "", "Four"),
    (THINK, None, " \nFour <b> ", "", " \nFour <b> "),
    (THINK, "thoughts", "I add.\n</think>\n\nFour", "I add.", "Four"),
    (THINK, "thoughts", "I add and", "I add and", ""),
    (THINK, "content", "\n\nFour", "", "Four"),
    (THINK, None, "<think>I</think> Say <think> </think>.", "I", "Say <think> </think>."),
    (THINK, None, "Say <think>.", "", "Say <think>."),
    (HARMONY, None, f"<|channel|>analysis<|message|>I add.<|end|>{FINAL}Four", "I add.", "Four"),
    (HARMONY, None, "<|channel|>analysis<|message|>I<|end|><|start|>assistant<|channel|>commentary"
     " to=functions.f<|message|>{}<|end|>" + FINAL + " Four", "I\n\n{}", "Four"),
    (HARMONY, None, "Four", "", "Four"),
    (GEMMA, None, "<|channel>thought\nI add.\n<channel|>Four", "I add.", "Four"),
    (GEMMA, None, "<|channel>thought\n<channel|>Four", "", "Four"),
    (reasoning.MAGISTRAL, None, "[THINK]I add.[/THINK]Four", "I add.", "Four"),
    (None, None, "<think>I add.</think> Four", "", "<think>I add.</think> Four"),
]  # fmt: skip


@pytest.mark.parametrize(("marks", "part", "text", "thoughts", "content"), CASES)
def test_parts_are_those_of_the_family_whole_and_letter_by_letter(
    marks, part, text, thoughts, content
):
    shown = text.replace("<|constrain|>", "")  # which is special, and no mark
    assert Parts(marks, part).read(shown, True) == (thoughts, content)
    parts = Parts(marks, part)
    pieces = [parts.read(letter, False) for letter in shown] + [parts.read("", True)]
    assert tuple(map("".join, zip(*pieces, strict=True))) == (thoughts, content)


def words(*marks: AddedToken) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>", "<|return|>"])
    made.add_tokens([*marks])
    return made


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_the_template_or_the_vocabulary_tells_the_family():
    plain = words()
    assert marks_of(plain) is None is marks_of(plain, "{{ messages }}")
    assert marks_of(plain, "{{ content.split('</think>') }}") is THINK
    thinking = words(AddedToken("<think>"), AddedToken("</think>"))
    assert marks_of(thinking) is THINK
    assert marks_of(object()) is None
    for end, part in (
        ("<think>\n", "thoughts"),
        ("<think>\n\n</think>\n\n", "content"),
        ("a", None),
    ):
        assert reasoning.begins(thinking, THINK, ids(thinking, f"Hi{end}")) == part
        lead = reasoning.lead(thinking, THINK, ids(thinking, f"Hi{end}"))
        assert (lead is None) == (part == "content")
        assert lead is None or lead[2] == (part == "thoughts")
    # Marks of several tokens are read, and a grammar does not wait for them.
    assert reasoning.lead(plain, THINK, ids(plain, "Hi")) is None
    assert reasoning.begins(plain, THINK, ids(plain, "Hi<think>\n")) == "thoughts"


def test_marks_are_text_although_a_tokenizer_calls_them_special():
    marks = [AddedToken(f"<|{one}|>", special=True) for one in ("start", "channel", "message")]
    harmony = words(*marks)
    assert marks_of(harmony) is HARMONY
    text = "<|channel|>final<|message|>naïve"
    row = Detokeniser(harmony, ids(harmony, "<|start|>assistant"))
    tokens = ids(harmony, text + "<|return|>")
    pieces = [row.push([token]) for token in tokens[:-1]]
    assert "".join([*pieces, row.finish(tokens[-1:], 0, Status.EOS)]) == text
    # Where they are not marks they stay hidden, as all special tokens.
    assert Detokeniser(words(marks[0])).finish(ids(words(marks[0]), "a<|start|>b<|end|>")) == "ab"


def test_the_token_that_ends_a_row_is_not_text():
    made = words(AddedToken("<|im_end|>", special=False))
    tokens = ids(made, "naïve<|im_end|>")
    for status, stops, text in (
        (Status.EOS, (), "naïve"),
        (Status.STOP, tokens[-1:], "naïve"),
        (Status.STOP, (), "naïve<|im_end|>"),  # by a stop string, which is cut elsewhere
        (Status.LIMIT, tokens[-1:], "naïve<|im_end|>"),
    ):
        assert Detokeniser(made).finish(tokens, 0, status, stops) == text
