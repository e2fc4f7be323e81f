"""Rows are kept apart by their setting, errors are those of texts, pages fit the rows."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from benchmarks import ledger
from benchmarks.ledger import Ledger
from benchmarks.results import dyspec, rendering, statistics, svg, tables
from benchmarks.results.rendering import FOLDER, INDEX, PICTURES, ROWS

PICTURE = re.compile(r"\]\(pictures/([^)]*\.svg)\)")
NO_PATH = re.compile(r"/(work|home|tmp|root|Users)/")


def test_pages_and_pictures_are_those_of_the_rows():
    made = rendering.rendered()
    for path, text in made.items():
        assert path.read_text("utf-8") == text, f"{path.name}: run python -m benchmarks.results"
    assert set(PICTURES.glob("*.svg")) <= set(made)


def anchors(page):
    """What the headings of a page are linked by."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [INDEX, *sorted(FOLDER.glob("*.md"))], ids=lambda page: page.stem)
def test_a_page_is_short_and_its_links_lead_somewhere(page):
    text = page.read_text("utf-8")
    assert len(text.splitlines()) <= (100 if page == INDEX else 400)
    for link, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)]*))?\)", text):
        file = page.parent / link if link else page
        assert file.exists(), f"{link} is no file"
        assert not anchor or anchor in anchors(file), f"{link}#{anchor} is no heading"


def test_every_picture_is_on_a_page():
    linked = {
        link for page in FOLDER.glob("*.md") for link in PICTURE.findall(page.read_text("utf-8"))
    }
    assert linked == {path.name for path in PICTURES.glob("*.svg")}


def test_rows_are_small_and_name_no_folder_of_a_machine():
    files = list(ROWS.glob("*.jsonl"))
    assert sum(file.stat().st_size for file in files) < 2_000_000
    assert not [file.name for file in files if NO_PATH.search(file.read_text("utf-8"))]


def test_a_ledger_goes_on_with_its_own_setting_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    first = Ledger(path, {"bench": "x", "new_tokens": 8})
    first.add(text="a", tokens=9)
    Ledger(path, {"bench": "x", "new_tokens": 16}).add(text="a", tokens=17)
    with path.open("a") as file:
        file.write('{"run": "half a li')
    again = Ledger(path, {"new_tokens": 8, "bench": "x"})
    assert [row["tokens"] for row in again.find(text="a")] == [9]
    read = ledger.read(path)
    assert [(row["new_tokens"], row["tokens"]) for row in read] == [(8, 9), (16, 17)]
    assert {"date", "device", "command"} <= set(read[0])


def test_the_line_that_an_interruption_left_is_not_glued_to_the_next_one(tmp_path):
    path = tmp_path / "rows.jsonl"
    Ledger(path, {"bench": "x"}).add(text="a")
    with path.open("a") as file:
        file.write('{"run": "half a li')
    Ledger(path, {"bench": "x"}).add(text="b")
    assert [row["text"] for row in ledger.read(path)] == ["a", "b"]
    for line in path.read_text().splitlines():
        json.loads(line)


def test_the_error_of_a_ratio_is_that_of_texts():
    # Against the spread of the ratio over many draws of texts.
    random = np.random.default_rng(0)
    rounds = random.integers(20, 60, (4000, 30))
    tokens = rounds * random.uniform(1.5, 3.5, rounds.shape)
    found = [statistics.ratio(a, b) for a, b in zip(tokens, rounds, strict=True)]
    spread = np.std([one.value for one in found])
    assert np.mean([one.error for one in found]) == pytest.approx(spread, rel=0.05)


def test_differences_are_paired_and_seeds_are_no_texts():
    random = np.random.default_rng(1)
    hard = random.uniform(1, 5, 20)
    ours, theirs = statistics.mean(hard + 0.3), statistics.mean(hard)
    assert ours.error > 0.2 and (ours - theirs).error == pytest.approx(0)
    assert (ours - theirs).ahead and (theirs - ours).behind
    # A text drawn three times is one text: its error must not fall.
    assert statistics.mean(np.repeat(hard[:, None], 3, 1)).error == pytest.approx(theirs.error)
    quotient = ours / theirs
    sizes = [(hard + 0.3)[p].mean() / hard[p].mean() for p in random.integers(0, 20, (4000, 20))]
    assert quotient.error == pytest.approx(np.std(sizes), rel=0.15)
    with pytest.raises(ValueError, match="20 and of 19 texts"):
        _ = ours - statistics.mean(hard[1:])


def test_a_table_loses_no_column_and_a_page_no_table():
    with pytest.raises(ValueError, match="3 cells under 2 heads"):
        tables.table(("a", "b"), [(1, 2, 3)])
    page = "x\n<!-- begin one -->\nold\n<!-- end one -->\ny\n"
    told = rendering.filled(page, {"one": "new"}, "p")
    assert told == "x\n<!-- begin one -->\nnew\n<!-- end one -->\ny\n"
    with pytest.raises(ValueError, match="alone: two"):
        rendering.filled(page, {"one": "new", "two": "newer"}, "p")


@pytest.mark.parametrize(
    ("verdict", "counts"),
    [
        ("*holds*: ahead in 24 of 24, behind in 0", "1 | 0 | 0 | 0 | 0"),
        ("*holds* with 1 of 3 pairs", "1 | 0 | 0 | 0 | 0"),
        ("MAT: *does not hold*; speed: *not shown*", "0 | 1 | 0 | 0 | 0"),
        ("by the pair: *holds*, *does not hold*, *holds*", "0 | 0 | 1 | 0 | 0"),
        ("by the pair: *holds*, *holds*, *open*", "0 | 0 | 1 | 0 | 0"),
        ("by the pair: *does not hold*, *does not hold*", "0 | 1 | 0 | 0 | 0"),
        ("*holds*; over as many fresh nodes *does not hold*", "0 | 0 | 1 | 0 | 0"),
        ("*not shown here*: why", "0 | 0 | 0 | 1 | 0"),
        ("*open*: within two standard errors", "0 | 0 | 0 | 0 | 1"),
        ("*not counted yet*", "0 | 0 | 0 | 0 | 1"),
    ],
)
def test_the_index_counts_the_verdicts_of_a_page(verdict, counts):
    told = tables.verdicts([tables.Verdict("a *b*", "1 *c*", "2", verdict)])
    assert rendering.papers({"x": ("X", told)}).endswith(f"| [X](results/x.md) | {counts} |")


def test_a_verdict_that_differs_by_the_pair_counts_as_mixed():
    ahead, behind = (statistics.mean([sign * n for n in (1.0, 1.1, 1.2)]) for sign in (1, -1))
    kinds = {"holds": [ahead, ahead], "does not hold": [behind], "mixed": [ahead, behind]}
    for kind, gaps in kinds.items():
        assert rendering.kind(dyspec._over_pairs(gaps)) == kind


def test_pictures_are_svg_for_light_and_dark_pages():
    value = statistics.mean([1.0, 2.0, 3.0])
    drawn = [
        svg.bars("t", ["a", "b & c"], {"m": [value, None]}, "y", {"m": [2.5, None]}),
        svg.lines("t", {"m": [(1, value), (2, 3.0)]}, "x", "y", log_x=True),
        svg.scatter("t", {"m": [(1, 2), (3, 4)]}, "x", "y"),
        svg.density("t", [[1, 0], [2, 3]], [0, 1, 2], [0, 1, 2], "x", "y", [(0.5, 1), (1.5, 1)]),
    ]
    for text in drawn:
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert "prefers-color-scheme:dark" in text
