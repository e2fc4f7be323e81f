import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jspec
import jspec.models
from jspec.sessions import json_output
from jspec.types import Status

SAMPLED = ("--temperature", 0.9, "--top-p", 0.95, "--top-k", 50, "--min-p", 0.001, "--seed", 7)
# A method that compiles in a second, and whose rounds no clock decides; the default takes ten.
QUICK = ("--method", "token_recycling")
LINES = ["Once upon", "[5, 6, 7, 8, 9, 10, 11]", "She", "a 猫", "[40]"]


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    file = tmp_path_factory.mktemp("batch") / "prompts.txt"
    file.write_text("\n".join(LINES))
    return file


@pytest.fixture
def records(command, folder):
    def run(*arguments):
        ran = command("generate", "--json", "--model", folder, "--max-new-tokens", 12, *arguments)
        assert ran.code == 0 and ran.err == "", ran.err
        return [json.loads(line) for line in ran.out.splitlines()]

    return run


def test_a_line_says_everything(records, folder):
    (record,) = records("Once upon", "--ignore-eos", *QUICK)
    of_the_row = ["row", "prompt_ids", "tokens", "text", "finish_reason"]
    of_the_run = ["seconds", "first_token_seconds", "metrics", "model", "method"]
    assert list(record) == [*of_the_row, *of_the_run, "temperature", "seed"]
    assert record["model"] == str(folder) and record["method"] == "token_recycling"
    assert (record["row"], record["temperature"], record["seed"]) == (0, 0, 0)
    loaded = jspec.models.load(folder)
    assert record["prompt_ids"] == loaded.tokenizer.encode("Once upon").ids
    assert record["finish_reason"] == "length" and len(record["tokens"]) == 12
    whole = loaded.tokenizer.decode(record["prompt_ids"] + record["tokens"])
    assert "Once upon" + record["text"] == whole
    assert 0 < record["first_token_seconds"] < record["seconds"] < 60

    metrics = record["metrics"]
    prompt = np.array([record["prompt_ids"]])
    plain = jspec.decode(loaded.model, loaded.params, prompt, max_new_tokens=12)
    assert record["tokens"] == plain.tokens[0].tolist()
    # The tree for a CPU has 7 nodes, of which those that repeat a sibling are not verified.
    drafter = jspec.LLM(loaded, "token_recycling").drafter
    same = jspec.decode(loaded.model, loaded.params, prompt, max_new_tokens=12, drafter=drafter)
    assert metrics["num_draft_tokens"] == same.stats.num_draft_tokens[0]
    assert metrics == jspec.metrics.of(same.stats).as_dict()
    assert 0 < metrics["num_draft_tokens"] <= 7 * metrics["num_rounds"]


def test_lines_draw_the_same_however_they_are_grouped(records, batch):
    asked = ("--method", "autoregressive", *SAMPLED)
    wanted, found = (
        [one["tokens"] for one in records("--batch-file", batch, "--batch-size", size, *asked)]
        for size in (5, 1)
    )
    assert found == wanted and len(set(map(tuple, wanted))) == len(LINES)
    assert records(LINES[0], *asked)[0]["tokens"] == wanted[0]
    assert records(LINES[0], *asked[:-1], 8)[0]["tokens"] != wanted[0]


def test_a_line_or_run_starts_with_what_the_lines_before_taught(records, tmp_path):
    file = tmp_path / "same.txt"
    file.write_text(f"{LINES[0]}\n" * 3)
    memory = tmp_path / "memory"
    fixed = ("--batch-file", file, "--ignore-eos", "--memory", memory, *QUICK)
    first, second, third = records(*fixed)
    assert first["tokens"] == second["tokens"] == third["tokens"]
    assert second["metrics"]["num_rounds"] < first["metrics"]["num_rounds"]
    again = records(*fixed)[0]
    assert again["tokens"] == first["tokens"]
    assert again["metrics"]["num_rounds"] < first["metrics"]["num_rounds"]
    assert sorted(tmp_path.iterdir()) == [memory, file]


def test_every_end_has_its_reason(records, folder):
    (record,) = records("Once upon", "--max-new-tokens", 1000, "--ignore-eos", *QUICK)
    assert record["finish_reason"] == "capacity"
    context = jspec.models.load(folder).model.context
    assert len(record["prompt_ids"] + record["tokens"]) == context + 1  # the last one needs no slot
    ends = {Status.EOS: "stop", Status.LIMIT: "length", Status.NAN: "nan"}
    assert {status: json_output.finish_reason(status) for status in ends} == ends


def test_an_end_token_stops(records, folder, monkeypatch):
    (free,) = records("Once upon", "--ignore-eos", *QUICK)
    end, load = free["tokens"][3], jspec.models.load
    ending = lambda *args, **how: replace(load(*args, **how), eos=(end,))  # noqa: E731
    monkeypatch.setattr(jspec.models, "load", ending)
    (record,) = records("Once upon", *QUICK)
    place = free["tokens"].index(end)
    assert record["tokens"] == free["tokens"][: place + 1] and record["finish_reason"] == "stop"


def test_a_group_is_written_before_the_next_one_runs(command, folder, batch, monkeypatch, capsys):
    prefill, calls = jspec.prefill, []

    def interrupted(**arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return prefill(**arguments)

    monkeypatch.setattr(jspec, "prefill", interrupted)
    asked = ("--max-new-tokens", 12, "--batch-file", batch, *QUICK)
    ran = command("generate", "--json", "--model", folder, *asked)
    assert ran.code == 130 and ran.err == ""
    assert [len(json.loads(line)["tokens"]) for line in ran.out.splitlines()] == [12, 12]


def test_with_an_adapter_tokens_are_those_of_the_merged_model(records, folder, tmp_path):
    query, rng = "model.layers.0.self_attn.q_proj", np.random.default_rng(3)
    weights = load_file(folder / "model.safetensors")
    outputs, inputs = weights[f"{query}.weight"].shape
    down, up = (rng.normal(0, 1, shape).astype("f4") for shape in ((2, inputs), (outputs, 2)))
    name = f"base_model.model.{query}.lora_"
    adapter = {f"{name}A.weight": down, f"{name}B.weight": up}
    save_file(adapter, tmp_path / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    merged = shutil.copytree(folder, tmp_path / "merged")
    weights[f"{query}.weight"] = weights[f"{query}.weight"] + 2 * up @ down
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    asked = ("Once upon", "--ignore-eos", "--method", "autoregressive")
    (own,), (wanted,), (base,) = (
        records(*asked, *options) for options in (("--lora", tmp_path), ("--model", merged), ())
    )
    assert own["tokens"] == wanted["tokens"] != base["tokens"]
