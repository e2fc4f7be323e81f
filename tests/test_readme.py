"""README's Python programs run as written."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_program_runs_and_gives_the_tokens_of_plain_decoding(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict = {}
    exec(compile(block, str(README), "exec"), names)
    text, acceptance = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert re.search("[a-z]", text)
    assert float(acceptance.strip("[]")) > 1
    plain = names["jspec"].LLM("jspec-7m", "autoregressive")
    assert names["answer"].texts == plain.decode("Once upon a time", max_new_tokens=128).texts


def test_it_is_at_most_100_lines():
    assert len(TEXT.splitlines()) <= 100


def test_it_has_the_two_commands():
    for name in ("generate", "test"):
        blocks = re.findall(rf"<!-- ci: {name} -->\n```bash\n(.*?)```", TEXT, re.DOTALL)
        assert len(blocks) == 1, name


def test_the_reading_path_is_an_hour():
    text = (README.parent / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w/.]+)`(.*?) \| (\d+) \|", text, re.MULTILINE)
    assert len(rows) > 10
    for file, parts, count in rows:
        lines = len((README.parent / file).read_text("utf-8").splitlines())
        assert parts or abs(lines - int(count)) <= 0.2 * lines, f"{file} has {lines} lines"
    assert 2_000 <= sum(int(count) for _, _, count in rows) <= 2_500


def test_files_that_it_names_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)", TEXT) if "://" not in link]
    assert len(links) > 10
    missing = [link for link in links if not (README.parent / link).exists()]
    assert not missing
