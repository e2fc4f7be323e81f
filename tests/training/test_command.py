"""`jspec train lm`: a run from text to a model that loads, and one sentence for bad input."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cli import train_lm, train_settings
from jspec.models.load import load

SMALL = (
    "--vocab-size 270 --hidden-size 16 --intermediate-size 24 --layers 1 --heads 2 --kv-heads 1 "
    "--head-dim 8 --context 32 --sequence 16 --batch-size 2 --warmup 1 --checkpoint-every 2"
).split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "cats.txt"
    path.write_text(
        "<|endoftext|>".join(f"There were {i} grey cats. They slept." for i in range(99))
    )
    return path


@pytest.mark.slow
def test_a_run_is_resumed_and_gives_a_model_that_loads(text, tmp_path, train):
    out = tmp_path / "run"
    code, output = train("lm", f"cats={text}", "--out", out, *SMALL, "--steps", 2, "--cooldown", 0)
    assert code == 0, output
    code, output = train("lm", "--out", out, "--steps", 3, "--resume")
    assert code == 0, output
    loaded = load(out / "model")
    assert loaded.model.config.hidden_size == 16
    assert loaded.eos == (0,)
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("grey cats").ids) == "grey cats"
    assert all(
        np.isfinite(leaf).all()
        for leaf in loaded.params["params"].values()
        if hasattr(leaf, "shape")
    )
    assert (out / "curve.png").stat().st_size and "cats" in (out / "heldout.json").read_text()

    code, output = train("lm", f"cats={text}", "--out", out, *SMALL, "--steps", 3)
    assert code == 2 and "already holds a run" in output
    other = ("--steps", 3, "--seed", 1, "--resume")
    code, output = train("lm", f"cats={text}", "--out", out, *SMALL, *other)
    assert code == 2 and "seed 0 -> 1" in output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "no text was given"),
        (["{folder}/absent.txt"], "does not exist"),
        (["{text}", "--layers", "0"], "num_layers is 0; use num_layers >= 1"),
        (["{text}", "--seed", "-1"], "seed is -1; use seed >= 0"),
        (["{text}", "--heads", "3", "--kv-heads", "2"], "do not share 2 key-value heads"),
        (["{text}", "--sequence", "64"], "longer than the context 32"),
        (["{text}", "--sequence", "8000", "--context", "8000"], "but one sequence needs 8001"),
        (["{text}", "--lr", "nan"], "learning_rate is nan"),
        (["{text}", "--vocab-size", "9000"], "gives only"),
        (["{text}", "--tokenizer", "{folder}"], "does not exist"),
        (["--recipe", "{folder}/no.toml"], "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(text, tmp_path, changes, message, train):
    filled = [change.format(text=text, folder=tmp_path) for change in changes]
    code, output = train("lm", "--out", tmp_path / "run", *SMALL, "--steps", 2, *filled)
    assert code == 2, output
    assert message in output
    assert "Traceback" not in output


def test_an_error_of_jax_keeps_its_traceback(text, tmp_path, monkeypatch, train):
    """Bad input is an InputError; another ValueError is a bug and is not swallowed."""
    monkeypatch.setattr(train_lm, "init", lambda *_: jnp.zeros(4).reshape(3))
    with pytest.raises((ValueError, TypeError), match="reshape"):
        train("lm", f"cats={text}", "--out", tmp_path / "run", *SMALL, "--steps", 2)


HELP = {
    "lm": {option.argument: option for option in train_settings.LM},
    "head": {
        option.argument: option for options in train_settings.HEADS.values() for option in options
    },
}


@pytest.mark.parametrize("command", HELP)
def test_help_names_every_setting_without_jax(command):
    code = (
        "import sys, jspec.cli.main as cli; "
        f"cli.run(['train', '{command}', '--help']); assert 'jax' not in sys.modules"
    )
    environment = os.environ | {"COLUMNS": "300", "TERM": "dumb"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    for argument, setting in HELP[command].items():
        flag = f"--{argument.replace('_', '-')} "
        (line,) = (line for line in ran.stdout.splitlines() if flag in line)
        assert setting.told in line


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no --kind was given; use one of eagle, lyanna, medusa, ngrams"),
        (["--kind", "block"], "--kind is 'block'; use one of eagle"),
        (["--kind", "eagle", "--rank", 3], "--rank does not apply to --kind eagle; leave it out"),
        (["--kind", "medusa", "--unroll", 3], "--unroll does not apply to --kind medusa"),
        (["--kind", "ngrams", "--lr", 3], "--lr does not apply to --kind ngrams"),
        (["--kind", "ngrams", "--begin-with", "x"], "--begin-with does not apply to --kind ngr"),
    ],
)
def test_options_of_other_kinds_are_refused(train, given, message):
    code, output = train("head", "--out", "run", *given)
    assert code == 2 and message in output
