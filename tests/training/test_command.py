"""`jspec train lm`: a run from text to a model that loads, and one sentence for bad input."""

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from jspec.app.train import train_app
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


def run(*arguments):
    app = typer.Typer()
    app.add_typer(train_app, name="train")
    return CliRunner().invoke(app, ["train", "lm", *map(str, arguments)])


def test_a_run_is_resumed_and_gives_a_model_that_loads(text, tmp_path):
    out = tmp_path / "run"
    result = run(f"cats={text}", "--out", out, *SMALL, "--steps", 2, "--cooldown", 0)
    assert result.exit_code == 0, result.output
    again = run(f"cats={text}", "--out", out, *SMALL, "--steps", 3, "--cooldown", 0, "--resume")
    assert again.exit_code == 0, again.output
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

    refused = run(f"cats={text}", "--out", out, *SMALL, "--steps", 3)
    assert refused.exit_code == 2 and "already holds a run" in refused.output
    other = run(f"cats={text}", "--out", out, *SMALL, "--steps", 3, "--seed", 1, "--resume")
    assert other.exit_code == 2 and "seed 0 -> 1" in other.output


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
    result = run("--out", tmp_path / "run", *SMALL, "--steps", 2, *filled)
    flat = " ".join(result.output.split())
    assert result.exit_code == 2, result.output
    assert message in flat
    assert "Traceback" not in flat
