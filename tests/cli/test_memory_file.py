"""`--memory`: what a method learns is there in the next run."""

import json

import pytest

FIRST = ("--max-new-tokens", 12, "--method", "token_recycling")


@pytest.fixture
def run(command, folder, tmp_path):
    def start(*arguments):
        known = ("--model", folder, "--memory", tmp_path / "memory")
        return command("generate", "Once upon", "--json", *known, *FIRST, *arguments)

    return start


def test_a_run_begins_with_what_the_last_one_learnt(run, tmp_path):
    first, second = (json.loads(run("--ignore-eos").out) for _ in range(2))
    assert first["tokens"] == second["tokens"]
    assert second["metrics"]["num_rounds"] < first["metrics"]["num_rounds"]
    assert [file.name for file in tmp_path.iterdir()] == ["memory"]


def test_an_invalid_memory_is_refused_in_one_sentence(run, tmp_path):
    for arguments, sentence in (
        (("--method", "prompt_lookup"), "PromptLookup keeps nothing that outlives a call"),
        (("--method", "auto"), "(methods token_recycling and suffix)"),
        (("--memory", tmp_path), "which cannot be written; give a file in a folder that is there"),
        (("--memory", tmp_path / "no" / "file"), "cannot be written"),
    ):
        ran = run(*arguments)
        assert ran.code == 2 and sentence in ran.err and ran.out == ""
    (tmp_path / "memory").write_text("no memory")
    ran = run()
    assert ran.code == 2 and "cannot be read as a drafter's memory" in ran.err
