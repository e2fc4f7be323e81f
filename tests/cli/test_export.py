"""`jspec export` as its user runs it."""

import pytest

import jspec
import jspec.models
from jspec.decoding.artefact.run import load


@pytest.mark.slow
def test_the_folder_runs_and_has_the_tokens_of_decode(command, folder, tmp_path):
    place = tmp_path / "served"
    ran = command(
        *("export", "--model", folder, "--method", "prompt_lookup", "--out", place),
        *("--prompt-tokens", 16, "--max-new-tokens", 8, "--platform", "cpu", "--ignore-eos"),
    )
    assert (ran.code, ran.err) == (0, "") and "run.py" in ran.out
    target = jspec.models.load(folder)
    prompt = target.tokenizer.encode("Once upon").ids
    found = jspec.decode(target.model, target.params, [prompt], max_new_tokens=8)
    assert load(place)([prompt]) == found.tokens.tolist()
    assert (place / "tokenizer.json").is_file()
    ran = command("export", "--model", folder, "--out", place)
    assert ran.code == 2 and "is there already; name a new folder" in ran.err


def test_unexportable_models_are_refused_in_one_sentence(command, folder, tmp_path):
    for arguments, said in (
        (("--out", "{tmp}/a/b"), "which is not a folder; make it first"),
        (("--out", "{tmp}/a", "--batch-size", 0), "--batch-size is 0"),
        (("--out", "{tmp}/a", "--platform", "vulkan"), "platforms is ['vulkan']; give one or more"),
        (("--out", "{tmp}/a", "--prompt-tokens", 0), "prompt_tokens is 0"),
    ):
        given = [str(part).format(tmp=tmp_path) for part in arguments]
        ran = command("export", "--model", folder, "--method", "autoregressive", *given)
        assert ran.code == 2 and said in " ".join(ran.err.split())
        assert not any(tmp_path.iterdir())
