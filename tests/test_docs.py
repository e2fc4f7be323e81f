"""The documentation: the reference is complete, programs run, and links lead to files."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import compiling
import pytest

import jspec

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
DIRECTIVES = {
    name
    for page in PAGES.values()
    for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)
}
# The page whose programs compile for two seconds; the others are slow.
QUICK = "exactness.md"


def find(name: str):
    """Returns what a dotted name of the reference stands for."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ImportError:
            continue
        for part in parts[size:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def test_the_reference_names_what_exists():
    missing = [name for name in DIRECTIVES if not inspect.getdoc(find(name))]
    assert not missing, "these have no docstring"


def test_every_public_name_is_in_the_reference():
    names = {f"jspec.{name}" for name in jspec.__all__ if not name.startswith("__")}
    assert not names - DIRECTIVES, "give these a line in docs/api"


def programs(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == QUICK else pytest.mark.slow)
        for name, page in PAGES.items()
        if programs(page)
    ],
)
def test_the_programs_of_a_page_run_one_after_the_other(name):
    # In a process of its own: pages set options of JAX.
    code = "\n".join(programs(PAGES[name]))
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=compiling.environment()
    )
    assert run.returncode == 0, run.stderr[-3000:]


def test_links_lead_to_files():
    wrong = []
    for name, page in PAGES.items():
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.M)
        for link in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" in link:
                # Our own repository's files, by the address that they will have.
                _, found, path = link.partition("jspec-dev/jspec/blob/main/")
                exists = not found or (ROOT / path).exists()
            else:
                exists = (page.parent / link).exists()
            wrong += [] if exists else [f"{name}: {link}"]
    assert not wrong, "these links lead to no file"
