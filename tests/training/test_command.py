"""`jspec train lm`: a run from text to a model that loads, and one sentence for bad input."""

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cli import head_recipes, train_lm, train_settings
from jspec.cli import main as cli
from jspec.models.load import load
from jspec.training import jobs

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


def run(*arguments):
    """(exit code, output) of the command."""
    with redirect_stdout(StringIO()) as output, redirect_stderr(output):
        code = cli.run(["train", "lm", *map(str, arguments)])
    return code, " ".join(output.getvalue().split())


@pytest.mark.slow
def test_a_run_is_resumed_and_gives_a_model_that_loads(text, tmp_path):
    out = tmp_path / "run"
    code, output = run(f"cats={text}", "--out", out, *SMALL, "--steps", 2, "--cooldown", 0)
    assert code == 0, output
    code, output = run("--out", out, "--steps", 3, "--resume")  # it knows its other settings
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
    assert (out / "loss.png").stat().st_size and "cats" in (out / "heldout.json").read_text()

    code, output = run(f"cats={text}", "--out", out, *SMALL, "--steps", 3)
    assert code == 2 and "already holds a run" in output
    other = ("--steps", 3, "--seed", 1, "--resume")
    code, output = run(f"cats={text}", "--out", out, *SMALL, *other)
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
def test_bad_input_is_one_sentence(text, tmp_path, changes, message):
    filled = [change.format(text=text, folder=tmp_path) for change in changes]
    code, output = run("--out", tmp_path / "run", *SMALL, "--steps", 2, *filled)
    assert code == 2, output
    assert message in output
    assert "Traceback" not in output


def test_an_error_of_jax_keeps_its_traceback(text, tmp_path, monkeypatch):
    """Bad input is an InputError; another ValueError is a bug and is not swallowed."""
    monkeypatch.setattr(train_lm, "init", lambda *_: jnp.zeros(4).reshape(3))
    with pytest.raises((ValueError, TypeError), match="reshape"):
        run(f"cats={text}", "--out", tmp_path / "run", *SMALL, "--steps", 2)


KINDS = {
    "eagle": train_settings.EAGLE,
    "lyanna": train_settings.LYANNA,
    "medusa": train_settings.MEDUSA,
}


def test_help_shows_the_defaults_of_the_jobs():
    job = jobs.TrainingJob()
    held = vars(job.recipe) | vars(job.shape) | vars(job)
    for setting in train_settings.LM:
        assert held[setting.name] == setting.default, setting.name
    for kind, settings in KINDS.items():
        job = head_recipes.KINDS[kind].job
        held = vars(job.recipe) | vars(job) | dict(job.shape) | dict(job.loss)
        for setting in settings:
            # They depend on the vocabulary.
            computed = setting.name in ("hot_tokens", "places")
            assert held[setting.name] == (None if computed else setting.default), setting.name
        named = {setting.name for setting in settings}
        assert {*job.shape, *job.loss} <= named, "every setting of its own is an option"


@pytest.mark.parametrize("command", ["lm", *KINDS])
def test_help_names_every_setting_without_jax(command):
    code = (
        "import sys, jspec.cli.main as cli; "
        f"cli.run(['train', '{command}', '--help']); assert 'jax' not in sys.modules"
    )
    environment = os.environ | {"COLUMNS": "200", "TERM": "dumb"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    for setting in KINDS.get(command, train_settings.LM):
        (line,) = (
            line
            for line in ran.stdout.splitlines()
            if f"--{setting.argument.replace('_', '-')} " in line
        )
        assert str(setting.default).lower() in line.lower()
