from types import SimpleNamespace

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from jspec.models import ChatTemplate
from jspec.sessions import conversations
from jspec.sessions.conversations import Drop, fitting

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"


def target(chat: bool):
    names = ["<user>", "<system>", "<assistant>", "<end>", "Hi", "Short"]
    words = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<end>"))
    words.add_special_tokens([AddedToken(name, normalized=False) for name in names[:4]])
    chat_template = ChatTemplate(TEMPLATE, words) if chat else None
    return SimpleNamespace(chat=chat_template, eos=(9,), model=SimpleNamespace(vocab_size=10))


def test_a_question_and_its_system_message_are_a_prompt():
    talk = conversations.from_prompt("Hi", system="Short")
    assert conversations.render(target(True), talk) == [1, 5, 3, 0, 4, 3]
    assert conversations.from_prompt("Hi") == talk[1:]


def test_an_answer_ends_where_the_text_or_the_turn_does():
    assert conversations.eos(target(True)) == (9, 3)
    assert conversations.eos(target(False)) == (9,)
    (pruned := target(True)).model.vocab_size = 3
    assert conversations.eos(pruned) == ()


SYSTEM = {"role": "system", "content": "s"}
TURNS = [
    {"role": role, "content": f"{role} {turn}"}
    for turn in range(5)
    for role in ("user", "assistant")
]
LAST = {"role": "user", "content": "last"}
TALK = [SYSTEM, *TURNS, LAST]


def test_the_turns_that_go_are_chosen():
    for drop, kept in (
        (Drop.NONE, TALK),
        # Half of the context is free then: the system message, two turns and the question.
        (Drop.OLDEST, [SYSTEM, *TURNS[6:], LAST]),
        (Drop.MIDDLE, [SYSTEM, *TURNS[:2], *TURNS[8:], LAST]),
    ):
        assert fitting(TALK, len, 12, 4, drop) == kept


def test_nothing_goes_while_there_is_room_for_an_answer():
    assert fitting(TALK, len, 14, 2, Drop.OLDEST) == TALK
    assert fitting(TALK, len, 14, 3, Drop.OLDEST) != TALK
    # A limit that no answer reaches takes no more than a quarter.
    assert fitting(TALK, len, 16, 1000, Drop.OLDEST) == TALK
    assert fitting(TALK, len, None, 1000, Drop.OLDEST) == TALK


def test_the_question_and_the_system_message_stay_whatever_their_length():
    assert fitting(TALK, len, 2, 1, Drop.OLDEST) == [SYSTEM, LAST]
    assert fitting(TALK, len, 2, 1, Drop.MIDDLE) == [SYSTEM, *TURNS[:2], LAST]
    assert fitting([SYSTEM], len, 1, 1, Drop.OLDEST) == [SYSTEM]
