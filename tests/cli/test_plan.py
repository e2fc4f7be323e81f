"""`jspec plan` as its user runs it."""

import json
import os

import pytest

from jspec.cli import plan_command

QUICK = ("--method", "token_recycling", "--max-model-len", 64)


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
