import io
import json
import re
import sys

import jspec
from jspec.cli import text_output
from jspec.cli.text_output import AnswerTiming
from jspec.costs.metrics import Metrics
from jspec.methods import LLM
from jspec.models import Loaded
from jspec.request import Request
from jspec.sessions import method_choice, terminal
from jspec.sessions.batches import Outcome
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session
from jspec.testing import PrefixLM


def test_the_text_and_then_the_figures(command, folder):
    asked = ("generate", "Once upon", "--model", folder, "--max-new-tokens", 12)
    ran = command(*asked, "--method", "token_recycling")
    assert ran.code == 0
    text = jspec.LLM(str(folder), "autoregressive").decode("Once upon", max_new_tokens=12).texts[0]
    assert ran.out == f"Once upon{text}\n" and "\x1b" not in ran.out
    # The clock decides whether it lost, which is then said last.
    said = [line for line in ran.err.splitlines() if "lost against plain" not in line]
    metrics, figures, measured = said[-3:]
    assert re.fullmatch(
        r"SpecDecoding metrics: Mean acceptance length: [\d.]+, "
        r"Accepted throughput: [\d.]+ tokens/s, Drafted throughput: [\d.]+ tokens/s, "
        r"Accepted: \d+ tokens, Drafted: \d+ tokens, "
        r"Per-position acceptance rate: [\d., ]+, Avg Draft acceptance rate: [\d.]+%.*",
        metrics,
    )
    assert re.fullmatch(
        r"12 tokens in [\d.]+ s · [\d.]+ tokens per second · [\d.]+ tokens per round · "
        r"[\d.]+ times plain decoding \([\d.]+\)",
        figures,
    )
    assert measured.startswith("Measured: jspec.decode, compiled")
    assert "gave the same tokens." in measured


def test_lines_come_in_order_with_their_numbers(command, folder, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("Once upon\nShe\n[40]\n")
    arguments = ("generate", "--batch-file", file, "--model", folder, "--max-new-tokens", 12)
    arguments += ("--method", "token_recycling")
    alone = command(*arguments, "--no-compare").out
    together = command(*arguments, "--no-compare", "--batch-size", 2).out
    assert re.findall(r"^\[\d\]$", alone, re.M) == ["[1]", "[2]", "[3]"]
    assert alone.split("\n\n")[0] == together.split("\n\n")[0]
    assert "times plain" not in alone
    mute = command(*arguments, "--no-compare", "--no-echo").out
    assert "Once upon" in alone and "Once upon" not in mute and mute.startswith("[1]\n")
    # Plain decoding is compared with nothing, and has no drafts to speak of.
    ran = command(*arguments[:-1], "autoregressive")
    assert ran.code == 0 and "times plain" not in ran.err and "1.00 tokens per round" in ran.err
    assert "SpecDecoding" not in ran.err
    assert ran.err.endswith(
        "Measured: jspec.stream, compiled, from prompt to last token, as shown above.\n"
    )


def outcome(tokens):
    return Outcome(0, [1], tokens, 2, Metrics((len(tokens),)), 1.0, 0.1)


def test_other_tokens_than_plain_decodings_are_reported():
    lines = text_output.report(
        [AnswerTiming([outcome([1, 2])], 1.0), AnswerTiming([outcome([1, 3])], 2.0)], 3
    )
    assert "2.00 times plain decoding (1.0)" in lines[0]
    assert "other tokens from number 2 of prompt 1 on" in lines[1] and "best of 3" in lines[1]


def test_a_method_that_lost_is_told_in_one_line(monkeypatch, command, folder):
    ours, plain = AnswerTiming([outcome([1, 2])], 2.0), AnswerTiming([outcome([1, 2])], 1.0)
    told = text_output.loss("token_recycling", ours, plain)
    assert told.startswith(
        "jspec: token_recycling lost against plain decoding here, at 0.50 times its speed"
    )
    assert "\n" not in told and "jspec bench" in told
    assert text_output.loss("token_recycling", plain, ours) is None
    assert text_output.loss("token_recycling", plain, plain) is None
    # Of a model that writes nothing, NaN say, nobody is faster.
    nothing = AnswerTiming([outcome([])], 1.0)
    assert text_output.loss("token_recycling", nothing, nothing) is None
    assert "times plain" not in text_output.report([nothing, nothing], 1)[0]
    timings = iter([[ours, plain], [plain, ours], [ours]])
    monkeypatch.setattr(text_output, "measure", lambda *_: (next(timings), 3))
    asked = ("generate", "She", "--model", folder, "--max-new-tokens", 12, "--method")
    asked += ("token_recycling",)
    assert command(*asked).err.splitlines()[-1] == told
    assert "lost against" not in command(*asked).err
    # Without a measured comparison nothing is claimed.
    assert "lost against" not in command(*asked, "--no-compare").err


def test_a_head_whose_drafts_are_never_accepted_is_warned_of():
    def rounds(*histogram):
        run = Metrics(histogram, num_drafts=sum(histogram), num_draft_tokens=9 * sum(histogram))
        return [Outcome(0, [1], [2], 2, run, 1.0, 0.1)]

    assert "mean acceptance length of 1.05" in text_output.doubt(rounds(19, 1))
    assert text_output.doubt(rounds(17, 3)) is None
    assert text_output.doubt(rounds(10)) is None, "too few rounds to tell"


def test_why_they_differ_depends_on_the_scheme(monkeypatch, capsys):
    timings = [AnswerTiming([outcome([1, 2])], 1.0), AnswerTiming([outcome([1, 3])], 2.0)]
    monkeypatch.setattr(text_output, "_stream", lambda *_, **__: [])
    monkeypatch.setattr(text_output, "measure", lambda *_: (timings, 3))
    rounding = "(forward passes of different width round differently"
    own = "gave other tokens of the same distribution, as scheme block draws its own."
    for scheme, temperature, why in (
        ("coupled", 1.0, rounding), ("block", 0.0, rounding), ("block", 1.0, own)
    ):  # fmt: skip
        choice = method_choice.choose("speculative_decoding", json.dumps({"scheme": scheme}))
        llm = LLM(Loaded(PrefixLM(), ()), drafter=jspec.Autoregressive())
        session = Session(llm, choice)
        settings = RunSettings(request=Request(temperature=temperature, seed=0))
        text_output.show(session, [[1]], settings)
        assert why in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def screen(monkeypatch, **environment):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    shown = terminal.Screen()
    shown.legend(drafts=True)
    shown.text("žok\n", terminal.DRAFTED)
    shown.text("a\x1b[2J\tb", terminal.OWN)
    return sys.stdout.getvalue()


def test_a_terminal_gets_colours_and_their_meaning_or_neither(monkeypatch):
    out = screen(monkeypatch)
    assert "drafted and confirmed" in out and "\x1b[32mžok" in out
    assert "\x1b[2J" not in out  # a model does not command the terminal
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        out = screen(monkeypatch, **environment)
        assert "drafted" not in out and "\x1b[3" not in out and out.startswith("žok\n")


def test_an_output_that_cannot_show_a_character_goes_on(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    terminal.Screen().text("a猫", terminal.OWN)
    assert written.getvalue() == b"a?"
