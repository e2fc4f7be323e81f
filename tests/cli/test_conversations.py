from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from jspec.models import ChatTemplate
from jspec.sessions import conversations

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"


def target(chat: bool):
    names = ["<user>", "<system>", "<assistant>", "<end>", "Hi", "Short"]
    words = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<end>"))
    words.add_special_tokens([AddedToken(name, normalized=False) for name in names[:4]])
    return SimpleNamespace(chat=ChatTemplate(TEMPLATE, words) if chat else None, eos=(9,))


def test_a_question_and_its_system_message_are_a_prompt():
    talk = conversations.prompted("Hi", system="Short")
    assert conversations.render(target(True), talk) == [1, 5, 3, 0, 4, 3]
    assert conversations.prompted("Hi") == talk[1:]


def test_an_answer_ends_where_the_text_or_the_turn_does():
    assert conversations.eos(target(True)) == (9, 3)
    assert conversations.eos(target(False)) == (9,)


def test_a_model_without_a_template_is_no_chat_model():
    with pytest.raises(ValueError, match=r"has no chat template.*take an instruct model"):
        conversations.render(target(False), conversations.prompted("Hi"))
