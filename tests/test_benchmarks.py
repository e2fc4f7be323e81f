"""Every command of benchmarks/ can be imported and says how it is called."""

import importlib
import re
from pathlib import Path

import typer
from typer.testing import CliRunner

from benchmarks import picture

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"


def command(file: Path) -> str:
    """Returns the text after `python -m`."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__main__" else parts)


COMMANDS = {
    command(file): file
    for file in sorted(FOLDER.rglob("*.py"))
    if re.search(r"^(def main\(|main = )", file.read_text("utf-8"), re.MULTILINE)
}


README = (FOLDER / "README.md").read_text("utf-8")
GONE = set(
    re.findall(
        r"`(benchmarks[.\w]*)`",
        README.partition("## Commands that are gone")[2].partition("\n## ")[0],
    )
)


def test_every_command_answers_help():
    for name, file in COMMANDS.items():
        module = importlib.import_module(f"{name}.__main__" * (file.stem == "__main__") or name)
        app = module.main
        if not isinstance(app, typer.Typer):
            app = typer.Typer()
            app.command()(module.main)
        result = CliRunner().invoke(app, ["--help"], env={"TERM": "dumb"})
        assert result.exit_code == 0 and "Usage:" in result.output, (name, result.output)


def test_the_readme_lists_every_command():
    assert set(re.findall(r"`python -m (benchmarks[\w.]*)", README)) == set(COMMANDS)
    assert not GONE & set(COMMANDS)


def test_the_picture_has_the_figures_of_the_results(tmp_path):
    gains, singles = picture.speedups(picture.RESULTS.read_text("utf-8"))
    assert len(gains) == 12 and singles[0] < min(gains.values())
    picture.main(tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_text("utf-8") == picture.OUT.read_text("utf-8")


def test_no_page_names_a_command_that_is_not_there():
    folders = ("benchmarks", "jspec", "models", "docs", "examples")
    pages = [page for name in folders for page in (ROOT / name).rglob("*")]
    for page in pages:
        if page.suffix not in (".py", ".md"):
            continue
        named = set(re.findall(r"python -m (benchmarks[\w.]*\w)", page.read_text("utf-8")))
        # Rows of results have the command that printed them, whether it is still there or not.
        history = GONE if page.parent.name == "results" else set()
        assert named <= set(COMMANDS) | history, page
