"""A tiny model in Hugging Face layout, and the command line called in this process."""

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny

from jspec.cli import main as cli
from jspec.models import export
from jspec.models.llama import Llama
from jspec.sessions import compilation

TEXTS = [
    "Once upon a time there was a naïve 猫 named Žofie.",
    "She said: «¡Olé!» 🐈 and slept.",
] * 9
VOCAB = 290
CONTEXT = 64


TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


class Ran(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Ran]


def make(folder: Path, vocab: int = VOCAB, kind: Callable[..., Llama] = tiny.model) -> Path:
    model = kind(vocab_size=vocab, context=CONTEXT)
    words = tiny.words(TEXTS, vocab)
    export.save_hf(model, tiny.params(model), folder, words, end=0, dtype="float32")
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def draft(tmp_path_factory) -> Path:
    """A smaller model with the first one's tokens, which it often foretells."""
    return make(tmp_path_factory.mktemp("draft"), kind=tiny.draft)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory) -> Path:
    """A model of another vocabulary."""
    return make(tmp_path_factory.mktemp("stranger"), vocab=280)


@pytest.fixture(scope="session")
def talker(folder, tmp_path_factory) -> Path:
    """The tiny model with a chat template alongside it."""
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("talker") / "model")
    (copy / "chat_template.jinja").write_text(TEMPLATE)
    return copy


@pytest.fixture
def command(monkeypatch, capsys) -> Command:
    """`command("generate", ..., stdin="...")` in this process."""
    # The tests have a compile cache of their own.
    monkeypatch.setattr(compilation, "keep_on_disk", lambda: None)

    def run(*arguments, stdin: str | bytes = "") -> Ran:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = cli.run([str(argument) for argument in arguments])
        return Ran(code, *capsys.readouterr())

    return run
