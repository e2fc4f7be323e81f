"""A chat's first rounds run before the whole program is compiled, and give its tokens."""

import threading
from concurrent.futures import wait
from dataclasses import replace

import pytest

import jspec
from jspec import models
from jspec.cli import chat, round_programs
from jspec.cli.round_programs import RoundPrograms
from jspec.request import Request
from jspec.sessions import method_choice, terminal
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session

SETTINGS = RunSettings(max_new_tokens=20, request=Request(seed=0, eos=()))
WIDTHS = '{"widths": [0, 3], "num_speculative_tokens": 3}'


@pytest.fixture
def session(talker, monkeypatch, tmp_path) -> Session:
    """A model with a drafter of two widths."""
    monkeypatch.setenv("JSPEC_CACHE", str(tmp_path))
    choice = method_choice.choose("prompt_lookup", WIDTHS)
    target = models.load(talker)
    return Session(choice.method.build(target, **choice.options), choice)


@pytest.fixture
def widths(monkeypatch) -> list[tuple[int, ...]]:
    """The ladders of the rounds that were run."""
    ran, step = [], jspec.step

    def watched(model, params, state, *, policy, **named):
        if not state.done.all():  # else it is only compiled
            ran.append(policy.widths)
        return step(model, params, state, policy=policy, **named)

    monkeypatch.setattr(jspec, "step", watched)
    return ran


def compiling(monkeypatch, whole):
    """Has `whole` called before a program of all widths is compiled."""
    compile_rounds = round_programs.compile_rounds

    def held(*arguments):
        if len(arguments[0]["policy"].widths) > 1:
            whole()
        compile_rounds(*arguments)

    monkeypatch.setattr(round_programs, "compile_rounds", held)


@pytest.mark.slow
def test_rounds_go_over_to_the_whole_program_as_soon_as_it_is_there(
    session, widths, monkeypatch, capsys
):
    released = threading.Event()
    compiling(monkeypatch, released.wait)
    conversation = chat.Conversation(session, SETTINGS)
    conversation.prepare()
    seen = []

    def after_three(text, style):
        seen.append(len(widths))
        if len(widths) == 3:
            released.set()
            wait([conversation._programs._whole])

    screen = terminal.Screen()
    monkeypatch.setattr(screen, "text", after_three)
    conversation.answer("Once upon", screen)
    assert widths[:3] == [(0,)] * 3 and set(widths[3:]) == {(0, 3)}
    assert seen[0] == 1, "the first text came while the whole program was being compiled"
    stats = conversation._state.stats
    assert stats.widths == (0, 3) and int(stats.width_histogram.sum()) == len(widths)
    assert int(stats.width_histogram[0, 0]) >= 3
    del widths[:]
    whole = chat.Conversation(session, SETTINGS)
    whole.answer("Once upon", terminal.Screen())
    assert set(widths) == {(0, 3)}
    assert whole._tokens == conversation._tokens and whole.messages == conversation.messages


def test_failures_of_the_whole_program_are_reported_once(session, widths, monkeypatch, capsys):
    def broken():
        raise RuntimeError("out of memory")

    compiling(monkeypatch, broken)
    conversation = chat.Conversation(session, SETTINGS)
    conversation.prepare()
    wait([conversation._programs._whole])
    for question in ("Once", "upon"):
        conversation.answer(question, terminal.Screen())
    assert set(widths) == {(0,)} and len(conversation.messages) == 4
    assert capsys.readouterr().err.count("out of memory") == 1
    conversation.close()


class Idle:
    """A runner that nothing is asked of."""

    def arguments(self, group):
        drafting = {"drafter": jspec.PromptLookup(), "policy": jspec.FixedWidth()}
        return drafting | {"drafter_params": None, "policy_params": None}


def test_ctrl_c_leaves_the_wait_to_the_next_answer(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(round_programs, "compile_ahead", lambda *_: released.wait())
    ahead = RoundPrograms(Idle())
    ahead.prepare(None, 64)

    def interrupted(futures):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(round_programs, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ahead.wait()
    released.set()
    ahead.wait()
    assert ahead._first is None
    ahead.close()


@pytest.mark.parametrize("at_a_terminal", [True, False])
def test_the_program_ends_while_the_whole_one_is_compiled(monkeypatch, at_a_terminal):
    released, ended = threading.Event(), []
    monkeypatch.setattr(round_programs, "compile_ahead", lambda *_: released.wait())
    monkeypatch.setattr("sys.stdin.isatty", lambda: at_a_terminal, raising=False)

    def leave(code):
        ended.append(code)
        raise SystemExit

    monkeypatch.setattr("os._exit", leave)
    ahead = RoundPrograms(Idle())
    ahead.prepare(None, 64)
    if at_a_terminal:  # nobody waits for XLA
        with pytest.raises(SystemExit):
            ahead.close()
        released.set()
    else:
        threading.Timer(0.05, released.set).start()
        ahead.close()
        assert released.is_set()
    wait([ahead._whole])
    assert ended == ([0] if at_a_terminal else [])
    ahead.close()


def test_a_drafter_of_one_width_has_one_program(session, monkeypatch, capsys):
    choice = method_choice.choose("prompt_lookup", None)
    compiled = []
    monkeypatch.setattr(
        round_programs, "compile_rounds", lambda *asked: compiled.append(asked[0]["policy"])
    )
    built = choice.method.build(session.target)
    conversation = chat.Conversation(replace(session, choice=choice, llm=built), SETTINGS)
    conversation.prepare()
    conversation.close()
    assert compiled == [built.policy] and conversation._programs._whole.result() is None
