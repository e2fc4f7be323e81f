"""Refusals of `jspec bench`: one sentence each, before anything is compiled."""

import json

import pytest


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    file = tmp_path_factory.mktemp("questions") / "question.jsonl"
    asked = {"question_id": 1, "category": "tales", "turns": ["Once upon a time"]}
    file.write_text(json.dumps(asked) + "\n")
    return file


REFUSED = [
    (["--methods", "sufix"], "'sufix' is unknown; did you mean suffix?"),
    (["--methods", ","], "--methods is ','; name one or more of"),
    (["--peers", "all"], "run `python -m benchmarks.peers` in a checkout"),
    (["--speculative-config", "{}"], "names no method"),
    (["--speculative-config", '{"method": "suffix", "k": 1}'], "'k' is unknown"),
    (["--repeats", 0], "--repeats is 0; pass at least 1"),
    (["--limit", 0], "--limit is 0; pass at least 1"),
    (["--turns", 0], "--turns is 0; pass at least 1"),
    (["--max-new-tokens", 0], "--max-new-tokens is 0"),
    (["--temperature", -1], "temperature is -1"),
    (["--draft-model", "x"], "--draft-model is 'x' and none of"),
    (["--head", "x"], "--head is 'x' and none of"),
    (["--methods", "coupled_tree"], "needs a draft model and none was given"),
    (["--methods", "rest"], "method rest needs datastore"),
    (["--memory", "/absent"], "--memory is /absent, and there is no such file"),
    (["--prompts", "x"], "--questions and --prompts were both given"),
    (["--speed-bench", "x"], "--questions and --speed-bench were both given"),
    (["--questions", "/absent"], "--questions /absent cannot be read"),
    (["--max-new-tokens", 64], "no question leaves room for --max-new-tokens 64"),
]


def test_bad_input_is_one_sentence(command, folder, questions, tmp_path):
    out = tmp_path / "out"
    for arguments, said in REFUSED:
        known = [] if "--questions" in arguments else ["--questions", questions]
        named = {"--methods", "--speculative-config"} & {*arguments}
        methods = [] if named else ["--methods", "suffix"]
        ran = command("bench", "--model", folder, *known, *methods, "--out", out, *arguments)
        assert ran.code == 2 and ran.out == "", arguments
        assert ran.err.startswith("jspec: ") and ran.err.count("\n") == 1, ran.err
        assert said in ran.err, ran.err


def test_a_folder_that_cannot_be_written_is_one_sentence(command, folder, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    ran = command("bench", "--model", folder, "--out", file / "inside")
    assert ran.code == 2 and ran.err.count("\n") == 1 and "cannot be written" in ran.err
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "rows.jsonl").write_text('{"run": 1}\nno row\n{}\n')
    ran = command("bench", "--model", folder, "--out", broken)
    assert ran.code == 2 and "line 2 of" in ran.err and "is not a row of a bench" in ran.err
    assert (broken / "rows.jsonl").read_text().count("\n") == 3, "nothing is lost"
