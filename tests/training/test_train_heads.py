"""`jspec train` of every kind of head: to one that loads; kills, full disks and bad input."""

import json

import jax
import numpy as np
import pytest
import quick
from jax.sharding import Mesh
from safetensors.numpy import load_file

from jspec import models
from jspec.cli import train_heads, train_run, train_texts
from jspec.models import heads
from jspec.training import checkpoints, parallel

SMALL = (
    "--sequence 12 --batch-size 2 --steps 6 --warmup 1 --checkpoint-every 2 --lr 5e-3 --heldout 0.3"
).split()
TWO = {
    "eagle": ["--unroll", 2],
    "lyanna": ["--unroll", 2, "--hot-tokens", 100, "--rank", 4],
    "medusa": ["--heads", 2],
}
"""So many draft steps."""


def on(patch, count):
    """Runs see so many of the test's devices."""
    devices = parallel.Devices(Mesh(np.array(jax.devices()[:count]), ("rows",)))
    patch.setattr(parallel.Devices, "of", lambda: devices)


@pytest.fixture(scope="module", autouse=True)
def one_device():
    with pytest.MonkeyPatch.context() as patch:
        on(patch, 1)
        yield


@pytest.fixture(scope="module")
def run(folder, train):
    """Trains a head; of an option that is given twice the last counts."""

    def given(kind, out, *arguments):
        options = ["--kind", kind, "--model", folder / "model", "--out", out]
        return train("head", *options, *SMALL, *TWO[kind], *arguments)

    return given


def curve(out):
    return [json.loads(line) for line in (out / checkpoints.CURVE).read_text().splitlines()]


def test_plain_text_and_rows_may_be_mixed(folder):
    texts = train_texts.find_texts(
        [f"cats={folder / 'text.txt'}", f"own={folder / 'rows.jsonl'}"], None, folder
    )
    found = train_texts.read(texts, models.load(folder / "model"), 12, 0.3)
    assert found.train.keys() == found.heldout.keys() == found.weights.keys() == {"cats", "own"}
    assert found.train["cats"].live.all() and not found.train["own"].live.all()


def test_a_recipe_has_settings_for_each_kind(folder, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[heads.eagle]\nsteps = 3\nunroll = 1\n[[text]]\nclass = "cats"\npath = "text.txt"\n'
    )
    job = train_heads.job("eagle", recipe, {"unroll": 2})
    assert (job.recipe.steps, job.loss["unroll"]) == (3, 2)
    assert train_heads.job("medusa", recipe, {}).recipe.steps == 2000
    (source,) = train_texts.find_texts([], recipe, folder).sources
    assert (source.label, source.path) == ("cats", folder / "text.txt")
    (source,) = train_texts.find_texts(["other.txt"], recipe, folder).sources
    assert source.label == "other"


@pytest.fixture(scope="module", params=quick.only(TWO, "eagle"))
def whole(request, folder, run, tmp_path_factory):
    """(kind, folder) of a run that nothing interrupted."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    code, output = run(request.param, out, folder / "rows.jsonl")
    assert code == 0, output
    return request.param, out


def test_a_run_gives_a_head_that_loads(folder, whole):
    kind, out = whole
    target = models.load(folder / "model")
    head, variables = heads.read_variables(out / "head", target, only=kind)
    assert head.vocab_size == 270
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(variables["params"]))
    lines = curve(out)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(len(line["acceptance"]) == 2 for line in lines)
    (score,) = json.loads((out / "heldout.json").read_text()).values()
    assert score["tokens"] == round(0.3 * 40) * 9 and len(score["acceptance"]) == 2
    if kind == "lyanna":
        ids = np.asarray(variables["hot"]["info"]["ids"])
        assert (np.diff(ids) > 0).all() and len(ids) == 100


class Killed(BaseException):
    pass


def killed(monkeypatch, step, kind, run, folder, out):
    """A run that ends after an update, before its checkpoint."""

    def told(report):  # it is called after every update
        if report.step == step:
            raise Killed
        return ""

    with monkeypatch.context() as patch:
        patch.setattr(train_run, "describe", told)
        with pytest.raises(Killed):
            run(kind, out, folder / "rows.jsonl")


def test_a_killed_run_resumes_on_the_same_curve(folder, whole, tmp_path, monkeypatch, run, train):
    kind, out = whole
    killed(monkeypatch, 3, kind, run, folder, tmp_path)
    code, output = run(kind, tmp_path, folder / "rows.jsonl")
    assert code == 2 and "already holds a run; resume it" in output
    with pytest.raises(ValueError, match="has no head yet, after 3 steps; go on with it"):
        heads.load(tmp_path, models.load(folder / "model"))
    code, output = train("head", "--out", tmp_path, "--resume")  # it knows its own settings
    assert code == 0, output
    assert heads.load(tmp_path, models.load(folder / "model")).head.vocab_size == 270
    assert curve(tmp_path) == curve(out)
    weights = "head/head.safetensors"
    assert (tmp_path / weights).read_bytes() == (out / weights).read_bytes()


def test_scores_of_steps_that_are_computed_again_are_not_kept_twice(tmp_path):
    path = tmp_path / "heldout_curve.jsonl"
    train_run.forget_scores(path, 3)
    assert not path.exists()
    lines = [json.dumps({"step": step, "scores": {}}) + "\n" for step in range(1, 6)]
    path.write_text("".join(lines) + '{"step": 2')  # the last one was cut by a kill
    train_run.forget_scores(path, 3)
    assert path.read_text() == "".join(lines[:3])


def test_stored_states_give_the_same_curve(folder, whole, tmp_path, run):
    kind, out = whole
    stored = ("--states", tmp_path / "states", "--states-dtype", "float32")
    code, output = run(kind, tmp_path / "run", folder / "rows.jsonl", *stored)
    assert code == 0, output
    # Into a pipe progress is lines, of which the last says that all is done.
    assert "training 6 of 6: loss" in output and "hardly trained yet" in output
    losses, expected = ([line["loss"] for line in curve(path)] for path in (tmp_path / "run", out))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_run_begins_with_a_trained_head(folder, whole, tmp_path, run):
    kind, out = whole
    still = ("--steps", 1, "--seed", 9, "--lr", "1e-9", "--begin-with", out)
    code, output = run(kind, tmp_path, folder / "rows.jsonl", *still)
    assert code == 0, output
    before, after = (load_file(at / "head/head.safetensors") for at in (out, tmp_path))
    for name, weights in before.items():
        np.testing.assert_array_equal(after[name], weights)
    assert json.loads((tmp_path / "head/head.json").read_text())["training"]["began_with"]


@pytest.mark.parametrize("whole", [pytest.param("medusa", marks=pytest.mark.slow)], indirect=True)
def test_a_head_of_another_shape_begins_no_run(folder, whole, tmp_path, run):
    kind, out = whole
    code, output = run(kind, tmp_path, folder / "rows.jsonl", "--begin-with", out, "--heads", 3)
    assert code == 2 and "has num_heads 2 and this run's would have 3; give the settin" in output


def test_another_target_is_refused(folder, whole, run):
    kind, out = whole
    code, output = run(kind, out, folder / "rows.jsonl", "--resume", "--model", folder / "other")
    assert code == 2 and "other settings (target" in output
    with pytest.raises(ValueError, match="other weights"):
        heads.load(out / "head", models.load(folder / "other"))


@pytest.mark.slow
def test_devices_share_the_batch(folder, whole, tmp_path, monkeypatch, run):
    """Two devices have the curve of one, also after they resumed."""
    kind, out = whole
    on(monkeypatch, 2)
    killed(monkeypatch, 4, kind, run, folder, tmp_path / "run")
    code, output = run(kind, tmp_path / "run", folder / "rows.jsonl", "--resume")
    assert code == 0, output
    losses, expected = ([line["loss"] for line in curve(path)] for path in (tmp_path / "run", out))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    code, output = run(kind, tmp_path / "odd", folder / "rows.jsonl", "--batch-size", 3)
    assert code == 2 and "batch of 3 rows does not divide over 2 devices" in output
