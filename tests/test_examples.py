"""Every example runs from beginning to end, as a user runs it."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import compiling
import jax
import numpy as np
import pytest

import jspec
from jspec import models

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
QUICKSTART = "quickstart.py"


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_runs(script, tmp_path):
    if script.stem.startswith("ray_"):
        pytest.importorskip("ray", reason="this example needs pip install '.[ray]'")
    run = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=compiling.environment(),
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip()
    assert not list(tmp_path.iterdir()), "an example leaves no files behind"


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_the_150_lines_write_the_tokens_of_decode(temperature):
    path = EXAMPLES / "speculative_decoding_in_150_lines.py"
    assert len(path.read_text("utf-8").splitlines()) <= 150
    own = runpy.run_path(str(path))
    target = models.load("jspec-800k")
    text = "Question: Tom has 3 apples and buys 4 more. Tom has 3 apples and"
    ids = target.tokenizer.encode(text).ids
    repeated = [7] * len(ids)  # the branches of its first tree have nothing to differ in
    for seed, prompt in enumerate((ids, repeated)):
        sampling = jspec.Sampling(temperature) if temperature else None
        whole = jspec.decode(
            target.model, target.params, [prompt], sampling=sampling, key=seed, max_new_tokens=64
        )
        for depth in (4,) if temperature else (0, 4):
            state = own["generate"](
                target.params["params"], np.array(prompt), jax.random.key(seed), temperature,
                depth=depth,
            )  # fmt: skip
            written = state.text[len(prompt) : len(prompt) + 64]
            np.testing.assert_array_equal(written, whole.tokens[0])
            assert (state.rounds < 64) == (depth > 0)


def cells(text: str) -> list[tuple[str, str]]:
    """(kind, source) of each cell of a script with `# %%` lines; the docstring is not a cell."""
    found = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = [re.sub(r"^# ?", "", line) for line in body.strip().splitlines()]
            found.append(("markdown", "\n".join(lines)))
        else:
            found.append(("code", body.strip()))
    return found


def test_the_notebook_is_the_script():
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text("utf-8"))
    held = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert held == cells((EXAMPLES / QUICKSTART).read_text("utf-8"))
    assert not any(cell.get("outputs") for cell in notebook["cells"]), "clear the outputs"


@pytest.mark.slow
def test_the_notebook_runs():
    nbformat = pytest.importorskip("nbformat", reason="notebooks need pip install '.[docs]'")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3")
    client.execute(env=compiling.environment())
    printed = [
        output["text"] for cell in notebook.cells for output in cell.get("outputs", ())
    ]  # an exception would have been raised
    assert any("tokens per forward pass" in text for text in printed)
