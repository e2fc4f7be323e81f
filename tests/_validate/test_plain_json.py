"""JSON that somebody else wrote: nested without end, or with numbers without end."""

import itertools

import pytest
import refusals

import jspec
from jspec._validate.errors import InputError
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
    "cost curves": jspec.costs.load,
    "text in rows": lambda file: corpus.text_row(file.read_text(), "{a}", "line 1"),
    "questions": lambda file: chats.row(file.read_text(), "", "line 1"),
    "rows of tokens": lambda file: sequences.read(file, 10),
    "rows that were written": _rows,
    "settings of a run": lambda file: checkpoints.agree(file, {"a": 1}),
    "command of a run": lambda file: train_resume.asked(file.parent, True, None, {}, {}, {}),
    "--logit-bias": lambda file: parse_logit_bias(file.read_text()),
    "rows of a bench": Ledger,
}


def test_every_reader_has_a_sentence(tmp_path):
    for number, (reader, text) in enumerate(itertools.product(READERS, TEXTS)):
        file = tmp_path / str(number) / train_resume.COMMAND
        file.parent.mkdir()
        file.write_text(TEXTS[text] + "\n")
        refusals.check([(file, "")], READERS[reader])


@pytest.mark.parametrize("text", TEXTS)
def test_rewritten_json_has_no_constants(tmp_path, text):
    file = tmp_path / "a.jsonl"
    file.write_text(TEXTS[text] + "\n")
    assert not sequences.holds_rows(file)


@pytest.mark.parametrize("text", ["a = " + "[" * 10**4, "a = " + "{a=" * 5000])
def test_a_recipe_that_is_nested_without_end(tmp_path, text):
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(InputError, match="is nested too deep to be read; make it flatter"):
        recipes.read(file)


@pytest.mark.parametrize("opens", ["(", "not "])
def test_a_template_that_is_nested_without_end(opens):
    chat = ChatTemplate("{{ " + opens * 5000 + "a }}", None)
    with pytest.raises(InputError, match="is not a Jinja template"):
        chat.render([{"role": "user", "content": "Hi"}])


def test_json_and_no_python_function_is_accepted():
    """Newer Pythons read lists that are nested deeper than their functions may call each other."""
    with pytest.raises(InputError, match="nested too deep"):
        corpus.text_row("[" * 5000 + "]" * 5000, "", "line 1")
