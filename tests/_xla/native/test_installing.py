"""Installation with kernels or without: a failing build does not fail the install."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import jspec

BUILD = Path(jspec.__file__).parent / "_xla" / "native" / "src" / "build.py"


@pytest.fixture
def build(monkeypatch):
    """The builder's module; of hatchling, which is only there while jspec is built, a stand-in."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin", ModuleType("plugin"))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("jspec_build", BUILD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installed(build, monkeypatch, tmp_path):
    """`installed(compiler)`: what the hook tells the builder, and what it says."""

    def run(compiler):
        monkeypatch.setenv("PATH", str(tmp_path))  # there is no other compiler
        if compiler is None:
            monkeypatch.delenv("CXX", raising=False)
        else:
            path = tmp_path / "compiler"
            path.write_text(f"#!/bin/sh\n{compiler}\n")
            path.chmod(0o755)
            monkeypatch.setenv("CXX", str(path))
        said, data = [], {"force_include": {}}
        hook = build.CustomBuildHook()
        hook.root = str(BUILD.parents[3])
        hook.app = SimpleNamespace(display_warning=said.append)
        hook.initialize("standard", data)
        hook.finalize("standard", data, "")
        return data, said

    return run


@pytest.mark.parametrize(
    ("compiler", "machine", "why"),
    [
        (None, "x86_64", "there is no C++ compiler: c++, g++ or clang++"),
        ("echo no such flag >&2; exit 3", "x86_64", "failed: no such flag"),
        ("exit 0", "riscv64", "there are no kernels for the processor riscv64"),
    ],
)
def test_where_none_can_be_built_jspec_is_installed_without_kernels(
    installed, build, monkeypatch, compiler, machine, why
):
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    data, said = installed(compiler)
    assert data == {"force_include": {}}  # the wheel of any machine
    (line,) = said
    assert line.startswith("jspec is built without kernels for CPUs: ") and line.endswith(why)


def test_with_one_the_library_is_part_of_a_wheel_of_this_machine(installed):
    data, said = installed("exit 0")
    assert said == []
    (place,) = data["force_include"].values()
    assert place == "jspec/_xla/native/src/libjspec.so"
    assert data["tag"].startswith("py3-none-") and data["pure_python"] is False
