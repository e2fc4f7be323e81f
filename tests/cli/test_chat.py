"""Conversations in the terminal, with a tiny model that was given a template."""

import os
import signal
import time
from dataclasses import replace

import pytest

import jspec
from jspec import decoding, models
from jspec.cli import chat
from jspec.models import reasoning
from jspec.request import Request
from jspec.sessions import method_choice, terminal
from jspec.sessions.conversations import Drop
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session
from jspec.types import Status


@pytest.fixture(scope="module")
def session(talker) -> Session:
    choice = method_choice.choose("prompt_lookup", None)
    target = models.load(talker)
    return Session(choice.method.build(target), choice)


SETTINGS = RunSettings(max_new_tokens=6)
ENDLESS = Request(seed=0, eos=())


def test_a_conversation_grows_by_what_was_said(command, talker):
    asked = "Once\n/history\n/reset\n/history\n/system Be brief\nOnce\n/history\n/what\n"
    options = ("--max-new-tokens", 4, "--method", "prompt_lookup")
    ran = command("chat", "--model", talker, *options, stdin=asked)
    assert ran.code == 0
    assert ran.out.count("user: Once") == 2 and ran.out.count("assistant: ") == 2
    assert ran.out.index("system: Be brief") > ran.out.index("assistant: ")
    assert "/reset" in ran.out and "Ctrl-C ends a reply" in ran.out
    assert ran.err.count("tokens per forward pass") == 2


def test_an_answer_is_that_of_generate(command, talker):
    asked = ("--model", talker, "--max-new-tokens", 4, "--method", "prompt_lookup")
    line = command("chat", *asked, stdin="Once").out
    told = "this is a chat model, and the prompt is continued as plain text"
    ran = command("generate", "Once", "--chat", *asked, "--no-compare")
    assert line and ran.out == line and told not in ran.err
    assert command("generate", "Once", *asked, "--no-compare").err.count(told) == 1


def test_a_conversation_that_fills_the_context_is_refused_and_kept(session, capsys):
    conversation = chat.Conversation(session, SETTINGS)
    with pytest.raises(ValueError, match=r"tokens and the model's context is 64; /reset begins"):
        conversation.answer("猫" * 40, terminal.Screen())
    assert conversation.messages == []


def test_turns_are_dropped_if_the_user_says_so(session, capsys):
    conversation = chat.Conversation(session, SETTINGS, "Be", Drop.OLDEST)
    for question in ("one", "two", "three", "four"):
        conversation.answer(question, terminal.Screen())
    system, *kept = conversation.messages
    assert system["content"] == "Be" and "messages were dropped" in capsys.readouterr().err
    assert "one" not in [message["content"] for message in kept]
    # The answer is the one to what stayed.
    again = chat.Conversation(session, SETTINGS)
    again.messages = [system, *kept[:-2]]
    again.answer("four", terminal.Screen())
    assert again.messages == conversation.messages


def test_ctrl_c_ends_the_answer_and_keeps_what_came(session, monkeypatch, capsys):
    conversation = chat.Conversation(session, replace(SETTINGS, max_new_tokens=30, request=ENDLESS))
    rounds = []
    finish = chat._finish

    def stop_at_the_third(work):
        result, _ = finish(work)
        rounds.append(result)
        return result, len(rounds) == 3

    monkeypatch.setattr(chat, "_finish", stop_at_the_third)
    figures = conversation.answer("Once", terminal.Screen())
    assert figures.startswith("[")
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    monkeypatch.setattr(chat, "_finish", finish)
    assert conversation.answer("upon", terminal.Screen()).startswith("[")
    assert len(conversation.messages) == 4


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_computation_that_ctrl_c_meets_is_awaited():
    def work():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return 7

    assert chat._finish(lambda: 7) == (7, False)
    assert chat._finish(work) == (7, True)


def test_a_turn_reads_what_is_new_alone(session, monkeypatch, capsys):
    asked, prefill = [], jspec.prefill

    def watched(**arguments):
        asked.append(arguments)
        return prefill(**arguments)

    monkeypatch.setattr(jspec, "prefill", watched)
    conversation = chat.Conversation(session, replace(SETTINGS, request=ENDLESS))
    for question in ("Once", "upon"):
        conversation.answer(question, terminal.Screen())
    first, second = asked
    # What the template writes behind an answer, and the question: not what was said before.
    assert "earlier" in second and "earlier" not in first
    read = session.target.tokenizer.decode(second["prompt"][0].tolist())
    assert read.strip().startswith("u:upon") and "Once" not in read
    conversation.reset("Be brief")
    conversation.answer("Once", terminal.Screen())
    assert "earlier" not in asked[2] and asked[2]["drafter_state"] is not None


def test_the_first_answer_is_compiled_while_its_question_is_written(session, capsys):
    conversation = chat.Conversation(session, SETTINGS)
    conversation.prepare()
    conversation.close()  # nobody is at a terminal: it waits
    made = decoding._prefill._cache_size(), decoding.decode_rounds._cache_size()
    conversation.answer("Once", terminal.Screen())
    assert (decoding._prefill._cache_size(), decoding.decode_rounds._cache_size()) == made
    drawn = replace(SETTINGS, request=Request(temperature=0.5, seed=0))
    unprepared = chat.Conversation(session, drawn)
    unprepared.answer("Once", terminal.Screen())
    assert decoding._prefill._cache_size() > made[0], "the first comparison could not fail"


def test_errors_of_early_compilation_are_raised_at_the_first_answer(session, monkeypatch):
    def broken(*arguments):
        time.sleep(0.1)  # the answer comes first, and waits
        raise jspec.InputError("no room")

    monkeypatch.setattr("jspec.cli.round_programs.compile_ahead", broken)
    conversation = chat.Conversation(session, SETTINGS)
    conversation.prepare()
    with pytest.raises(jspec.InputError, match="no room"):
        conversation.answer("Once", terminal.Screen())
    conversation.answer("Once", terminal.Screen())


def test_notes_do_not_come_into_a_line_that_is_written(capsys):
    with terminal.reading():
        terminal.note("measuring")
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "measuring\n"


def test_thoughts_are_dim_and_not_sent_back(session, monkeypatch):
    conversation = chat.Conversation(session, SETTINGS)
    conversation._session = replace(conversation._session, marks=reasoning.THINK)
    encode = session.target.tokenizer.encode
    rounds = [encode(text).ids for text in ("<think>\nOnce", " a</thi", "nk>\n\n", "Upon")]
    rounds[-1].append(session.target.eos[0])
    seen = []

    def chunks(known, new):
        for place, tokens in enumerate(rounds, 1):
            yield tokens, int(Status.EOS if place == len(rounds) else Status.RUNNING)

    screen = terminal.Screen()
    monkeypatch.setattr(conversation, "_rounds", chunks)
    monkeypatch.setattr(screen, "text", lambda *piece: seen.append(piece))
    for _ in range(2):
        conversation.answer("Hi", screen)
    for is_thought, text in ((True, "Once a"), (False, "\n\nUpon")):
        pieces = [piece for piece, style in seen if (style == terminal.PROMPT) == is_thought]
        assert "".join(pieces) == text * 2
    assert [one["content"] for one in conversation.messages] == ["Hi", "Upon"] * 2
