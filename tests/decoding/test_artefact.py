"""Exported programs run in a process that has JAX alone, with the tokens of `decode`."""

import json
import shutil
import subprocess
import sys

import compiling
import jax
import jax.numpy as jnp
import pytest
import tiny

import jspec
from jspec.decoding.artefact.run import load

MODEL = tiny.model(num_layers=1, context=64)
PARAMS = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tiny.params(MODEL))
DRAFTER = jspec.PromptLookup(num_speculative_tokens=3, whole=False)
ASK = dict(drafter=DRAFTER, stopping=jspec.Stopping(eos=4), max_new_tokens=20)
PROMPTS = [[5, 3, 9, 1, 5, 3], [8, 1], [6, 1, 6]]
# In a process of its own: what it imports is seen.
RUN = """
import runpy, sys
file, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_path(file, run_name="__main__")
finally:
    assert not {"jspec", "flax", "optax", "orbax", "transformers"} & {*sys.modules}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("artefact") / "new"
    return jspec.export(place, MODEL, PARAMS, prompt_tokens=10, rows=[3, 8], **ASK)


def wanted(**changes):
    found = jspec.decode(MODEL, PARAMS, PROMPTS, **(ASK | changes))
    counts = found.lengths.tolist()
    return [row[:count] for row, count in zip(found.tokens.tolist(), counts, strict=True)]


@pytest.mark.slow
def test_a_process_with_jax_alone_has_the_tokens_of_decode(folder):
    warm = ("--temperature", "1.2", "--top-p", "0.9", "--seed", "5")
    command = [sys.executable, "-c", RUN, str(folder / "run.py"), json.dumps(PROMPTS)]
    ran = subprocess.run(
        [*command, *warm], capture_output=True, text=True, env=compiling.environment()
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    sampling = jspec.Sampling(temperature=1.2, top_p=0.9)
    assert json.loads(ran.stdout) == wanted(sampling=sampling, key=5)


@pytest.mark.slow
def test_temperature_0_is_greedy_and_limits_hold(folder):
    generate = load(folder)
    assert generate(PROMPTS) == wanted()
    assert generate(PROMPTS[:2], max_new_tokens=3) == [row[:3] for row in wanted()][:2]


@pytest.mark.slow
def test_samples_equal_those_of_decode(folder):
    sampling = jspec.Sampling(temperature=1.2, top_p=0.9)
    found = load(folder)(PROMPTS, temperature=1.2, top_p=0.9, seed=5)
    assert found == wanted(sampling=sampling, key=5)


def test_one_lowering_serves_all_platforms(folder):
    told = json.loads((folder / "artefact.json").read_text())
    assert told["platforms"] == ["cpu", "cuda", "tpu"] and told["rows"] == [3, 8]
    kinds = dict(zip(told["weights"], told["dtypes"], strict=True))
    assert set(kinds.values()) == {"bfloat16"}
    program = jax.export.deserialize(bytearray((folder / "rows-8.bin").read_bytes()))
    assert program.platforms == ("cpu", "cuda", "tpu")
    assert program.in_avals[len(kinds)].shape == (8, 10)


def test_misfits_are_refused_in_one_sentence(folder, tmp_path):
    generate = load(folder)
    for prompts, changes, said in (
        ([[1]] * 9, {}, "there are 9 prompts; give 1 to 8"),
        ([[]], {}, "prompt 0 has 0 tokens; give 1 to 10"),
        ([[1], [23]], {}, "prompt 1 holds 23, no token id; give 0 to 22"),
        ([[True]], {}, "prompt 0 holds True, no token id"),
        ([[1], 7], {}, "prompt 1 is 7; give a list of token ids"),
        ({"0": 1}, {}, "prompts is {'0': 1}; give a list of lists"),
        ([[1]], dict(max_new_tokens=21), "max_new_tokens is 21; give at most 20"),
        ([[1]], dict(seed=-1), "seed is -1; give 0 to 4294967295"),
        ([[1]], dict(seed=2**32), "seed is 4294967296; give"),
        ([[1]], dict(temperature=-1.0), "temperature is -1.0; give 0 to 1000000"),
        ([[1]], dict(temperature=float("nan")), "temperature is nan; give"),
        ([[1]], dict(temperature=1.0, top_p=0.0), "top_p is 0.0; give 1e-06 to 1"),
        ([[1]], dict(top_k=-1), "top_k is -1; give 0 to"),
        ([[1]], dict(min_p=1.5), "min_p is 1.5; give 0 to 1"),
    ):
        with pytest.raises(ValueError, match=said):
            generate(prompts, **changes)
    told = json.loads((folder / "artefact.json").read_text())
    for changes, said in (
        (
            dict(format=2, jspec="0.1.0"),
            "written by jspec 0.1.0 in format 2 and this program reads",
        ),
        (dict(calling_convention=1), "calling convention 1, and JAX .* export the model again"),
        (dict(platforms=["tpu"]), "was exported for tpu and this process runs on cpu"),
        (dict(rows=[]), r"has rows = \[\]; export the model again"),
        (dict(programs="a"), "has programs = 'a'; export the model again"),
    ):
        (tmp_path / "artefact.json").write_text(json.dumps(told | changes))
        with pytest.raises(ValueError, match=said):
            load(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        load(tmp_path / "absent")
    for name in ("artefact.json", "weights.npz", "rows-3.bin"):
        for content in (None, b"[]", (folder / name).read_bytes()[:-99]):
            broken = tmp_path / f"{name}-{content is None}-{content == b'[]'}"
            shutil.copytree(folder, broken)
            (broken / name).unlink()
            if content is not None:
                (broken / name).write_bytes(content)
            with pytest.raises(ValueError, match=f"{name} cannot be read .*; export the model"):
                load(broken)(PROMPTS)
    changed = bytearray((folder / "rows-3.bin").read_bytes())
    changed[-1] ^= 1
    shutil.copytree(folder, tmp_path / "changed")
    (tmp_path / "changed/rows-3.bin").write_bytes(changed)
    with pytest.raises(ValueError, match=r"its bytes have changed\); export the model again"):
        load(tmp_path / "changed")(PROMPTS)
    for changes in (dict(prompt_tokens=10**12), dict(max_new_tokens=10**12)):
        (tmp_path / "changed/artefact.json").write_text(json.dumps(told | changes))
        (tmp_path / "changed/rows-3.bin").write_bytes((folder / "rows-3.bin").read_bytes())
        with pytest.raises(ValueError, match="it is not for what"):
            load(tmp_path / "changed")(PROMPTS)
    for changes, said in (
        (dict(rows=0), "rows is 0"),
        (dict(rows=[]), "rows is empty"),
        (dict(prompt_tokens=65), "prompt_tokens is 65"),
        (dict(platforms=["rocm"]), "platforms is .'rocm'.; give one or more of cpu, cuda, tpu"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            jspec.export(
                tmp_path, MODEL, PARAMS, **(dict(prompt_tokens=5, max_new_tokens=4) | changes)
            )
