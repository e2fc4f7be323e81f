"""Shared fixtures of the training tests: a target, texts, and the command."""

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import pytest
import tiny

from jspec.cli import main as cli
from jspec.models import export

TEXTS = [f"Here are {i} grey cats, and all of them sleep." for i in range(30)]


@pytest.fixture(scope="session")
def train():
    """Runs `jspec train` and returns its exit code and what it printed, in one line."""

    def run(*arguments):
        with redirect_stdout(StringIO()) as output, redirect_stderr(output):
            code = cli.run(["train", *map(str, arguments)])
        return code, " ".join(output.getvalue().split())

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A target, another target, a text, and rows as `jspec train data` writes them."""
    place = tmp_path_factory.mktemp("training")
    words = tiny.words(TEXTS * 3, 270)
    for name, seed in (("model", 0), ("other", 1)):
        model = tiny.model(vocab_size=270, context=32)
        params = tiny.params(model, seed) if seed else tiny.params(model)
        export.save_hf(model, params, place / name, words, end=0, dtype="float32")
    (place / "text.txt").write_text("<|endoftext|>".join(TEXTS))
    rows = np.random.default_rng(0).integers(1, 270, (40, 9)).tolist()
    (place / "rows.jsonl").write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))
    return place
