import pytest

from jspec.cli.dropping import Drop, fitting

SYSTEM = {"role": "system", "content": "s"}
TURNS = [
    {"role": role, "content": f"{role} {turn}"}
    for turn in range(5)
    for role in ("user", "assistant")
]
LAST = {"role": "user", "content": "last"}
TALK = [SYSTEM, *TURNS, LAST]


@pytest.mark.parametrize(
    ("drop", "kept"),
    [
        (Drop.NONE, TALK),
        # Half of the context is free then: the system message, two turns and the question.
        (Drop.OLDEST, [SYSTEM, *TURNS[6:], LAST]),
        (Drop.MIDDLE, [SYSTEM, *TURNS[:2], *TURNS[8:], LAST]),
    ],
)
def test_the_turns_that_go_are_chosen(drop, kept):
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
