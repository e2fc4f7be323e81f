"""`jspec bench` on a tiny model: rows, resuming, memory, and other engines."""

import json
import re
import shutil

import pytest

from jspec._validate.errors import InputError
from jspec.cli.bench import run, settings
from jspec.cli.bench.chat import Bare, wording
from jspec.cli.bench.contenders import Reply
from jspec.cli.bench.ledger import Ledger
from jspec.cli.bench.measure import Bench, ReportedContender
from jspec.cli.bench.questions import Question, read
from jspec.cli.bench.settings import PLAIN, BenchSettings
from jspec.models import load
from jspec.sessions import compilation
from jspec.sessions.run_settings import RunSettings

ASKED = [
    {"question_id": 7, "category": "tales", "turns": ["Once upon a time", "And then?"]},
    {"question_id": "b", "category": "tales", "turns": ["She said: once"]},
    {"question_id": 9, "category": "cats", "turns": ["a 猫 and a 猫 and a"]},
]


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    file = tmp_path_factory.mktemp("questions") / "question.jsonl"
    file.write_text("\n".join(map(json.dumps, ASKED)) + "\n")
    return file


@pytest.fixture
def bench(command, folder, questions):
    """`bench(out, ...)`: the command on the tiny model, and the rows that are in its folder."""

    def start(out, *arguments):
        ran = command(
            *("bench", "--model", folder, "--questions", questions, "--out", out),
            *("--max-new-tokens", 8, "--repeats", 2, *arguments),
        )
        assert ran.code == 0, ran.err
        return ran, rows(out)

    return start


def rows(out):
    lines = (out / "rows.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "method" in row]


def counts(found):
    """Returns what of the rows no clock decides."""
    clock = ("seconds", "prefill_seconds", "plain_seconds", "plain_prefill_seconds")
    return sorted(
        ({name: value for name, value in row.items() if name not in clock} for row in found),
        key=lambda row: (row["method"], row["prompt"], row["turn"]),
    )


def go(folder, questions, out, methods):
    """Runs the command to its end, outside of a test."""
    from jspec.cli import main as cli

    where = ("--model", str(folder), "--questions", str(questions), "--out", str(out))
    how = ("--max-new-tokens", "8", "--repeats", "2", "--methods", methods)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "keep_on_disk", lambda: None)  # as in `command`
        assert cli.run(["bench", *where, *how]) == 0
    return out


@pytest.fixture(scope="module")
def whole(folder, questions, tmp_path_factory):
    """A bench of plain decoding, to which a method was added."""
    out = go(folder, questions, tmp_path_factory.mktemp("whole"), "autoregressive")
    alone = rows(out)
    go(folder, questions, out, "suffix")
    assert rows(out)[:3] == alone
    return out


def test_every_prompt_and_method_has_a_row_and_a_method_is_measured_alone(whole, folder):
    found, loaded = rows(whole), load(folder)
    assert [(row["method"], row["question"]) for row in found] == [
        (method, name) for method in (PLAIN, "suffix") for name in ("7", "b", "9")
    ]
    for row in found:
        assert len(row["seconds"]) == len(row["prefill_seconds"]) == 2
        assert len(row["tokens"]) == row["num_tokens"] <= 8
        assert row["first_difference"] is None and row["compared"]
        if row["question"] == "b":
            assert row["num_prompt_tokens"] == len(loaded.tokenizer.encode("She said: once").ids)
        if row["method"] == PLAIN:
            assert row["num_rounds"] == row["num_tokens"]
            assert row["plain_seconds"] == row["seconds"]
        assert row["metrics"]["mean_acceptance_length"] >= 1


def test_an_interrupted_bench_goes_on_with_the_memory_that_it_had(bench, whole, tmp_path):
    out = tmp_path / "killed"
    shutil.copytree(whole, out)
    file = out / "rows.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    # Killed while the last prompt's row was written.
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    ran, found = bench(out, "--methods", "suffix")
    assert re.fullmatch(r"finished prompts are .* memory\n3/3 cats 9: .*\n", ran.err)
    # Without the answers before it, suffix would draft other tokens.
    assert counts(found) == counts(rows(whole))
    assert "tales" in ran.out and "cats" in ran.out
    last = ran.out.rstrip("\n").splitlines()[-1]
    assert re.search("cannot tell that from noise|laintext|lain decoding", last)


def test_other_settings_leave_old_rows_alone_and_turns_follow_plain_decodings_answers(
    bench, whole, tmp_path
):
    out = tmp_path / "other"
    shutil.copytree(whole, out)
    before = rows(whole)
    config = '{"method": "suffix", "num_speculative_tokens": 3}'
    ran, found = bench(
        *(out, "--speculative-config", config, "--limit", 1, "--turns", 2),
        *("--cold", "--temperature", 0.9),
    )
    own = found[len(before) :]
    assert found[: len(before)] == before and len(own) == 4
    assert "suffix num_speculative_tokens=3" in ran.out and "temperature 0.9" in ran.out
    assert all(row["compared"] and row["first_difference"] is None for row in own)
    turns = {row["turn"]: row for row in own if row["method"] == PLAIN}
    grown = turns[0]["num_prompt_tokens"] + turns[0]["num_tokens"]
    assert turns[1]["num_prompt_tokens"] > grown


class Fake:
    """A contender that says given tokens."""

    def __init__(self, tokens, learns=False, raises=None):
        self.tokens, self.learns, self.raises = tokens, learns, raises
        self.answered, self.remembered = [], 0

    def warm_up(self, group):
        if self.raises is not None:
            raise self.raises

    def prefill(self, group):
        pass

    def answer(self, group):
        self.answered.append(list(group.rows))
        return self.tokens

    def replies(self, group, answer):
        return [Reply(answer, "length", 1) for _ in group.rows]

    def remember(self, answer):
        self.remembered += 1


class Words:
    def encode(self, text):
        return type("Encoded", (), {"ids": [ord(letter) for letter in text]})

    def decode(self, ids):
        return "".join(map(chr, ids))

    id_to_token = staticmethod(chr)


def fakes(tmp_path, entries, asked=("tales", "tales", "cats"), context=None, **changes):
    found = [Question(str(i), kind, ("a", "b"), "") for i, kind in enumerate(asked)]
    options = dict(repeats=2) | changes
    said = []
    made = Bench(
        entries, found, Bare(Words()), Words(), context,
        BenchSettings(RunSettings(max_new_tokens=3, batch_size=options.pop("batch", 1)), **options),
        Ledger(tmp_path / "rows.jsonl"), "r", said.append,
    )  # fmt: skip
    return made, said


def test_all_take_turns_and_learn_once_a_prompt(tmp_path):
    plain, ours = Fake([1, 2]), Fake([1, 3], learns=True)
    made, said = fakes(tmp_path, {PLAIN: ReportedContender(plain), "ours": ReportedContender(ours)})
    made.measure()
    assert plain.answered == ours.answered == [[0], [0], [1], [1], [2], [2]]
    assert ours.remembered == 3 and len(said) == 3
    found = made.ledger.find(method="ours")
    assert [row["first_difference"] for row in found] == [1, 1, 1]
    # Prompts of one class run together.
    plain = Fake([1])
    made, _ = fakes(tmp_path / "two", {PLAIN: ReportedContender(plain)}, batch=2, repeats=1)
    made.measure()
    assert plain.answered == [[0, 1], [2]]
    assert [row["num_together"] for row in made.ledger.rows] == [2, 2, 1]
    # A turn that does not fit is not asked.
    made, _ = fakes(tmp_path / "three", {PLAIN: ReportedContender(plain)}, context=4, turns=2)
    made.measure()
    assert {row["turn"] for row in made.ledger.rows} == {0}


def test_a_peer_that_fails_stops_alone(tmp_path):
    wrong = Fake([1], raises=RuntimeError("no memory"))
    entries = {PLAIN: ReportedContender(Fake([1])), "peer": ReportedContender(wrong, is_peer=True)}
    made, _ = fakes(tmp_path, entries)
    made.measure()
    assert made.stopped == {"peer": "it stopped: RuntimeError: no memory"}
    assert len(made.ledger.find(method=PLAIN)) == 3 and wrong.answered == []
    entries = {PLAIN: ReportedContender(Fake([1], raises=RuntimeError("a bug of ours")))}
    with pytest.raises(RuntimeError, match="a bug of ours"):
        fakes(tmp_path / "ours", entries)[0].measure()


def test_an_interrupt_keeps_what_was_measured(tmp_path):
    slow = Fake([1])
    made, _ = fakes(tmp_path, {PLAIN: ReportedContender(slow)})
    made.say = lambda line: (_ for _ in ()).throw(KeyboardInterrupt) if line[0] == "2" else None
    with pytest.raises(KeyboardInterrupt):
        made.measure()
    assert len(Ledger(tmp_path / "rows.jsonl").rows) == 2


def test_an_interrupted_command_says_how_to_go_on(
    command, folder, questions, tmp_path, monkeypatch
):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "measure", stop)
    asked = ("--questions", questions, "--max-new-tokens", 8)
    ran = command("bench", "--model", folder, *asked, "--out", tmp_path / "o")
    assert ran.code == 130 and "the same command goes on" in ran.err


def test_engines_that_cannot_take_part_say_why(whole, folder, questions, tmp_path, capsys):
    out = tmp_path / "peers"
    shutil.copytree(whole, out)
    chosen = settings.choices("suffix", [], None, None)
    job = settings.BenchOptions(
        str(folder), None, None, None, None, chosen,
        BenchSettings(RunSettings(max_new_tokens=8), repeats=2),
    )  # fmt: skip
    asked = []

    def invite(target, room):
        asked.append(room)
        return {"absent": "it is not installed"}

    run.run(job, read(questions), Ledger(out / "rows.jsonl"), invite)
    said = capsys.readouterr()
    assert "absent is left out: it is not installed" in said.out and said.err == ""
    assert asked[0] > 8 and len(rows(out)) == len(rows(whole))


def test_default_measurements():
    assert next(iter(settings.choices(None, [], None, None))) == settings.DEFAULT
    assert "coupled_tree" in settings.choices(None, [], None, "a model")
    assert list(settings.choices("autoregressive,suffix", [], None, None)) == ["suffix"]
    # Two heads are two methods, and the options of --head are implied.
    other = '{"method": "eagle2", "head": "theirs"}'
    assert list(settings.choices("eagle2", [other], "mine", None)) == [
        "eagle2",
        "eagle2 head=theirs",
    ]
    chosen = settings.choices("eagle2,suffix", [], "mine", None)
    assert chosen["eagle2"].options == {"head": "mine"} and chosen["suffix"].options == {}


def test_a_chat_template_is_used_where_there_is_one(folder, tmp_path):
    loaded = load(folder)
    tokenizer = loaded.tokenizer
    assert wording(loaded).name == "bare text"
    chat = tmp_path / "chat"
    shutil.copytree(folder, chat)
    (chat / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    found = wording(load(chat))
    said = "<user>Hello<assistant>Hi<user>Bye<assistant>"
    assert found.name == "chat template"
    assert (
        found.ids(["Hello", "Bye"], ["Hi"]) == tokenizer.encode(said, add_special_tokens=False).ids
    )
    assert found.ids([(5, 6)], []) == [5, 6]
    bare = wording(load(chat), raw=True)
    assert bare.ids(["Hello"], []) == tokenizer.encode("Hello").ids
    (chat / "chat_template.jinja").write_text("{{ nothing.there }}")
    with pytest.raises(InputError, match=r"template.* pass --raw"):
        wording(load(chat))
