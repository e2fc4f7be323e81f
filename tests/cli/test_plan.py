"""`jspec plan` as its user runs it."""

import json
import os

import pytest

from jspec.cli import plan_text

TINY = "memory=1e9,bandwidth=1e12,flops=1e14"
QUICK = ("--method", "token_recycling", "--max-model-len", 64)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The command sets variables for libtpu, which other tests do not want."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_a_folder_with_config_json_alone_is_planned(command, folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    ran = command("plan", tmp_path, *QUICK, "--rows", 2, "--device", TINY)
    assert (ran.code, ran.err) == (0, "")
    words = " ".join(ran.out.split())
    assert "2 rows of 64 tokens" in words and "Predicted and not measured" in words
    assert "are left. A round of" in words.splitlines()[-1]
    ran = command("plan", tmp_path / "config.json", *QUICK, "--device", TINY, "--json")
    told = json.loads(ran.out)
    assert ran.code == 0 and told["fits"] and told["rounds"][0]["width"] == 0
    assert told["bytes_per_device"]["total"] == sum(
        value for name, value in told["bytes_per_device"].items() if name != "total"
    )
    small = TINY.replace("1e9", "1e5")
    ran = command("plan", tmp_path, *QUICK, "--rows", 2, "--device", small)
    last = ran.out.strip().splitlines()[-1]
    assert ran.code == 3 and "does not fit" in last and "less" in last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-model",), "shapes that need no file: llama-1b"),
        (("llama-8b", "--device", "X1"), "device 'X1' is unknown; take one of TPU v5e"),
        (("llama-8b", "--device", "memory=1e9"), "lacks bandwidth"),
        (("llama-8b", "--device", "memory=x,bandwidth=1,flops=1"), "memory = 'x'"),
        (("llama-8b", "--device", "speed=1"), "has the figure 'speed'"),
        (("llama-8b", "--topology", "v5e:3x5"), "v5e has no such slice; take one of 1x1, 2x2"),
        (("llama-8b", "--topology", "v5p:2x4"), "v5p has no such slice"),
        (("llama-8b", "--topology", "v9:2x2"), "no generation that jspec knows"),
        (
            ("llama-8b", "--topology", "h99:1"),
            "h200, b200 and a number, such as h100:8",
        ),
        (("llama-8b", "--topology", "h100:3"), "a host has 1, 2, 4, 8 GPUs; take h100:1 to h100:8"),
        (("llama-8b", "--topology", "v5e:2x4", "--device", "v5e"), "leave --device out"),
        (("llama-8b", "--topology", "v5e:2x4", "--mesh", "model=4"), "whose product is 8"),
        (("llama-8b", "--mesh", "rows=2"), "pass axes such as data=2,model=4"),
        (("llama-8b", "--mesh", "data=2", "--devices", "3"), "leave one out"),
        (("llama-8b", "--devices", "0"), "--devices is 0"),
        (("jspec-800k", "--mesh", "data=3", "--rows", "4", *QUICK), "such as 6"),
        (("jspec-800k", "--rows", "0", *QUICK), "rows is 0"),
        (("jspec-800k", "--max-model-len", "200000"), "--max-model-len is 200000"),
        (("llama-8b", "--compile-layers", "4"), "pass two rising numbers"),
        (("llama-8b", "--compile-layers", "2,4"), "without --compile"),
        (("llama-8b", "--method", "medusa"), "has a trained head, and llama-8b has none"),
        (("llama-8b", "--mesh", "data=2,data=4"), "such as data=2,model=4, each of them once"),
        (("llama-8b", "--mesh", "model=" + "9" * 50), "each of them once"),
        (("llama-8b", "--devices", "0"), "--devices is 0; pass an integer in 1 .. 65536"),
        (("llama-8b", "--devices", "99999999999"), "--devices is 99999999999; pass an integer in"),
        (("llama-8b", "--device", "v5e", "--compile"), "--compile compiles for this machine"),
        (
            ("llama-8b", "--max-model-len", "64", "--max-new-tokens", "64"),
            "--max-new-tokens is 64; pass an integer in 1 .. 63",
        ),
        (
            ("llama-8b", "--device", "memory=0.5,bandwidth=1,flops=1"),
            "device has memory = '0.5'; give a number in 1 .. 1e30",
        ),
        (("jspec-800k", "--compile", "--devices", "64", *QUICK), "take fewer, name a --topology"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(command, monkeypatch, arguments, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ran = command("plan", *arguments)
    assert ran.code == 2 and said in " ".join(ran.err.split()) and not ran.out


@pytest.mark.slow
def test_a_topology_needs_libtpu_only_to_compile(command, monkeypatch):
    asked = ("llama-8b", "--topology", "v5e:2x4", "--method", "prompt_lookup")
    monkeypatch.setattr("jspec.planning.topology.find_spec", lambda name: None)
    ran = command("plan", *asked)
    assert ran.code == 0 and "8 x TPU v5e (data=1, model=8)" in " ".join(ran.out.split())
    ran = command("plan", *asked, "--compile")
    assert ran.code == 2 and "pip install 'jspec-jax[tpu]' into an environment" in ran.err


@pytest.mark.slow
def test_a_gpu_that_is_not_here_needs_jaxs_plugin_only_to_compile(command, monkeypatch):
    asked = ("llama-8b", "--topology", "h100:8", "--method", "prompt_lookup")
    monkeypatch.setattr("jspec.planning.gpu_chips.find_spec", lambda name: None)
    ran = command("plan", *asked)
    assert ran.code == 0 and "8 x H100 (data=1, model=8)" in " ".join(ran.out.split())
    ran = command("plan", *asked, "--compile")
    assert ran.code == 2 and "pip install 'jspec-jax[cuda-aot]' into an environment" in ran.err


@pytest.mark.slow
def test_compiled_figures_are_shown(command, folder):
    ran = command("plan", folder, *QUICK, "--compile")
    words = " ".join(ran.out.split())
    assert ran.code == 0 and "XLA, prefill:" in words and "temporaries" in words
    assert "compiled;" in words


def test_bytes_are_said_in_three_digits():
    sizes = [plan_text.size(count) for count in (0, 999, 27_411_456, 999_600, 16.9e9, 2e12)]
    assert sizes == ["0 B", "999 B", "27.4 MB", "1 MB", "16.9 GB", "2 TB"]


@pytest.mark.slow
def test_auto_and_the_bundled_model_are_the_defaults(command):
    ran = command("plan", "--json")
    told = json.loads(ran.out)
    assert (told["model"], told["method"], ran.code) == ("jspec-7m", "auto", 0)
    assert [each["width"] for each in told["rounds"]] == [0, 3, 7, 15]
    ran = command("plan", "jspec-7m", "--method", "eagle", "--device", "v5e", "--mesh", "model=2")
    assert ran.code == 0 and "weights of the drafter" in ran.out and "a draft" in ran.out
