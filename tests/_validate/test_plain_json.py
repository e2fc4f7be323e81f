"""JSON that somebody else wrote: nested without end, or with numbers without end."""

import itertools

import refusals

from jspec.cli import train_resume
from jspec.cli.bench.ledger import Ledger
from jspec.models.chat_template import ChatTemplate
from jspec.sessions.answer_form import parse_logit_bias
from jspec.training import chats, checkpoints, corpus, distill, recipes, sequences

TEXTS = {
    "deep": "[" * 10**5, "less deep": "[" * 900 + "]" * 900, "digits": "9" * 5000, "half": "{",
}  # fmt: skip


def _rows(file):
    checkpoints.agree(file.with_name(file.name + ".settings.json"), {"a": 1})
    distill.RowFile(file, {"a": 1})


READERS = {
    "text in rows": lambda file: corpus.text_row(file.read_text(), "{a}", "line 1"),
    "questions": lambda file: chats.row(file.read_text(), "", "line 1"),
    "rows of tokens": lambda file: sequences.read(file, 10),
    "rows that were written": _rows,
    "settings of a run": lambda file: checkpoints.agree(file, {"a": 1}),
    "command of a run": lambda file: train_resume.resume_arguments(
        file.parent, True, None, {}, {}, {}
    ),
    "--logit-bias": lambda file: parse_logit_bias(file.read_text()),
    "rows of a bench": Ledger,
}


def test_every_reader_has_a_sentence(tmp_path):
    for number, (reader, text) in enumerate(itertools.product(READERS, TEXTS)):
        file = tmp_path / str(number) / train_resume.COMMAND
        file.parent.mkdir()
        file.write_text(TEXTS[text] + "\n")
        refusals.check([(file, "")], READERS[reader])


def test_what_is_nested_without_end_is_no_json_recipe_or_template(tmp_path):
    file = tmp_path / "a.jsonl"
    for text in TEXTS.values():
        file.write_text(text + "\n")
        assert not sequences.holds_rows(file)

    def recipe(text):
        file.write_text(text)
        recipes.read(file)

    def render(opens):
        chat = ChatTemplate("{{ " + opens * 5000 + "a }}", None)
        chat.render([{"role": "user", "content": "Hi"}])

    flatter = "is nested too deep to be read; make it flatter"
    refusals.check([("a = " + opens, flatter) for opens in ("[" * 10**4, "{a=" * 5000)], recipe)
    refusals.check([(opens, "is not a Jinja template") for opens in ("(", "not ")], render)
    # Newer Pythons read lists that are nested deeper than their functions may call each other.
    deep = "[" * 5000 + "]" * 5000
    refusals.check([(deep, "nested too deep")], lambda text: corpus.text_row(text, "", "line 1"))
