"""`jspec plan` as its user runs it."""

import json
import os

import pytest

from jspec.cli import plan_command

QUICK = ("--method", "token_recycling", "--max-model-len", 64)
NO_LIBTPU = "pip install 'jspec-jax[tpu]' into an environment"
NO_PLUGIN = "pip install 'jspec-jax[cuda-aot]' into an environment"
LAST = ("--method", "prompt_lookup")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The command sets variables for libtpu, which other tests do not want."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_a_folder_with_config_json_alone_is_compiled(command, folder, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    shown = []
    monkeypatch.setattr(plan_command, "_show", lambda *given: shown.append(given))
    ran = command("plan", tmp_path / "config.json", *QUICK, "--rows", 2)
    assert (ran.code, ran.err) == (0, "")
    ((head, programs, _),) = shown
    assert [each.function for each in programs] == ["prefill", "rounds"] and head["fits"]
    assert (head["rows"], head["capacity"]) == (2, 64)


def test_figures_are_shown_as_text_and_json(command, folder, monkeypatch):
    """Compiled is a stand-in here, which also launches something and does not fit."""
    from jspec.costs import devices
    from jspec.planning import Compiled, Programs
    from jspec.planning.launches import Launches

    launches = Launches(kernels=94, alone=1, graphs=1, waits=1)
    found = Compiled("rounds", 2000, 500, 1e9, 4000.0, 0, 900, 1.0, launches)
    monkeypatch.setattr(Programs, "prefill", lambda self: found)
    monkeypatch.setattr(Programs, "rounds", lambda self: found)
    ran = command("plan", folder, *QUICK)
    words = " ".join(ran.out.split())
    assert ran.code == 0 and "1 x 64 tokens, on 1 x CPU (data=1, model=1)" in words
    assert "94 kernels and copies, in 1 graphs and 1 alone, and waits 1 times" in words
    assert "rounds 2 kB 500 B 1 4 kB 0 B 1 s" in words and "It fits: a device holds 2.5 kB" in words
    monkeypatch.setattr(devices, "usable", lambda device: 2400)
    ran = command("plan", folder, *QUICK, "--json")
    told = json.loads(ran.out)
    assert (ran.code, told["fits"], told["programs"][1]["held"]) == (3, False, 2500)
    assert told["programs"][1]["launches"]["kernels"] == 94
    assert (
        "does not fit: a device holds 2.5 kB, and has 2.4 kB" in command("plan", folder, *QUICK).out
    )


def test_impossible_plans_are_refused_in_one_sentence(command, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("jspec.planning.topology.find_spec", lambda name: None)
    monkeypatch.setattr("jspec.planning.gpu_chips.find_spec", lambda name: None)
    for arguments, said in (
        (("no-such-model",), "shapes that need no file: llama-1b"),
        (("llama-8b", "--topology", "v5e:3x5"), "v5e has no such slice; take one of 1x1, 2x2"),
        (("llama-8b", "--topology", "v5p:2x4"), "v5p has no such slice"),
        (("llama-8b", "--topology", "v9:2x2"), "an unknown generation"),
        (("llama-8b", "--topology", "h99:1"), "h200, b200 and a number, such as h100:8"),
        (("llama-8b", "--topology", "h100:3"), "a host has 1, 2, 4, 8 GPUs; take h100:1 to h100:8"),
        (("llama-8b", "--topology", "v5e:2x4", "--mesh", "model=4"), "whose product is 8"),
        (("llama-8b", "--topology", "v5e:2x4", *LAST), NO_LIBTPU),
        (("llama-8b", "--topology", "h100:8", *LAST), NO_PLUGIN),
        (("llama-8b", "--mesh", "rows=2"), "pass axes such as data=2,model=4"),
        (("llama-8b", "--mesh", "data=2,data=4"), "such as data=2,model=4, each of them once"),
        (("llama-8b", "--mesh", "model=" + "9" * 50), "each of them once"),
        (("llama-8b", "--mesh", "data=0"), "data of --mesh is 0; pass an integer in 1 .. 65536"),
        (("jspec-800k", "--mesh", "data=3", "--rows", "4", *QUICK), "such as 6"),
        (("jspec-800k", "--rows", "0", *QUICK), "rows is 0"),
        (("jspec-800k", *LAST, "--max-model-len", "200000"), "--max-model-len is 200000"),
        (("jspec-800k", "--mesh", "model=64", *QUICK), "take fewer, or name a --topology"),
        (("llama-8b", "--method", "medusa"), "llama-8b is neither a bundled model"),
        (
            ("jspec-800k", *QUICK, "--max-new-tokens", "64"),
            "--max-new-tokens is 64; pass an integer in 1 .. 63",
        ),
    ):
        ran = command("plan", *arguments)
        assert ran.code == 2 and said in " ".join(ran.err.split()) and not ran.out, arguments


def test_bytes_are_said_in_three_digits():
    sizes = [plan_command._size(count) for count in (0, 999, 27_411_456, 999_600, 16.9e9, 2e12)]
    assert sizes == ["0 B", "999 B", "27.4 MB", "1 MB", "16.9 GB", "2 TB"]


@pytest.mark.slow
def test_auto_and_the_bundled_model_are_the_defaults(command):
    told = json.loads(command("plan", "--json").out)
    assert (told["model"], told["method"]) == ("jspec-7m", "auto")
    assert command("plan", "jspec-7m", "--method", "eagle").code == 0
