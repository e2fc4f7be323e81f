"""Rows are kept apart by their setting, errors are those of texts, pages fit the rows."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from benchmarks import ledger
from benchmarks.ledger import Ledger
from benchmarks.results import claims, markdown, observations, pages, statistics, tables, values
from benchmarks.results.cells import Cells
from benchmarks.results.observations import ROWS
from benchmarks.results.pages import FOLDER, INDEX, PICTURES
from benchmarks.results.pictures import pictures
from benchmarks.rsd.settings import EXPERIMENTS, METHODS

PICTURE = re.compile(r"\]\(pictures/([^)]*\.svg)\)")
NO_PATH = re.compile(r"/(work|home|tmp|root|Users)/")
AGAIN = "run python -m benchmarks.results"


def test_pages_are_those_of_the_rows():
    for path, text in pages.pages().items():
        assert path.read_text("utf-8") == text, f"{path.name}: {AGAIN}"


@pytest.fixture(scope="module")
def drawn():
    return {name: one for of in pages.papers().values() for name, one in pictures(of).items()}


def test_pictures_have_the_numbers_of_the_rows(drawn):
    assert {path.name for path in PICTURES.glob("*.svg")} == set(drawn)
    for name, picture in drawn.items():
        file = ElementTree.parse(PICTURES / name)
        told = next(file.iter("{http://purl.org/dc/elements/1.1/}description")).text
        assert told == picture.told, f"{name}: {AGAIN}"


@pytest.mark.slow
def test_pictures_are_drawn_again_byte_for_byte(drawn):
    matplotlib = pytest.importorskip("matplotlib")
    for name, picture in drawn.items():
        before = (PICTURES / name).read_text("utf-8")
        if f"Matplotlib v{matplotlib.__version__}," not in before:
            pytest.skip("another version of matplotlib drew them")
        assert picture.svg() == before, f"{name}: {AGAIN}"


def anchors(page):
    """Returns what the headings of a page are linked by."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [INDEX, *sorted(FOLDER.glob("*.md"))], ids=lambda page: page.stem)
def test_a_page_is_short_and_its_links_lead_somewhere(page):
    text = page.read_text("utf-8")
    assert len(text.splitlines()) <= (100 if page == INDEX else 400)
    for link, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)]*))?\)", text):
        file = page.parent / link if link else page
        assert file.exists(), f"{link} is not a file"
        assert not anchor or anchor in anchors(file), f"{link}#{anchor} is not a heading"


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
        file.write('{"run": "half a li')  # which is not glued to the next line
    again = Ledger(path, {"new_tokens": 8, "bench": "x"})
    assert [row["tokens"] for row in again.find(text="a")] == [9]
    again.add(text="b", tokens=5)
    read = ledger.read(path)
    assert [(row["new_tokens"], row["tokens"]) for row in read] == [(8, 9), (16, 17), (8, 5)]
    assert {"date", "device", "command"} <= set(read[0])
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


def test_differences_are_paired_and_repeats_do_not_count_as_texts():
    random = np.random.default_rng(1)
    hard, ones = random.uniform(1, 5, 20), np.ones(20)
    ours, theirs = statistics.ratio(hard + 0.3, ones), statistics.ratio(hard, ones)
    assert ours.error > 0.2 and (ours - theirs).error == pytest.approx(0)
    assert (ours - theirs).ahead and (theirs - ours).behind
    # A text that three seeds have is one text: its error must not fall.
    thrice = [
        {"method": "m", "repeat": seed, "text": text, "tokens": tokens, "calls": 1}
        for text, tokens in enumerate(hard)
        for seed in range(3)
    ]
    assert Cells(thrice).of("m", "tokens/calls").error == pytest.approx(theirs.error)
    quotient = ours / theirs
    assert quotient.ahead and not quotient.behind and (theirs / ours).behind
    sizes = [(hard + 0.3)[p].mean() / hard[p].mean() for p in random.integers(0, 20, (4000, 20))]
    assert quotient.error == pytest.approx(np.std(sizes), rel=0.15)
    with pytest.raises(ValueError, match="20 and of 19 texts"):
        _ = ours - statistics.ratio(hard[1:], ones[1:])


def test_a_table_loses_no_column_and_a_page_no_table():
    with pytest.raises(ValueError, match="3 cells under 2 heads"):
        markdown.table(("a", "b"), [(1, 2, 3)])
    page = "x\n<!-- begin one -->\nold\n<!-- end one -->\ny\n"
    told = pages.filled(page, {"one": "new"}, "p")
    assert told == "x\n<!-- begin one -->\nnew\n<!-- end one -->\ny\n"
    with pytest.raises(ValueError, match="alone: two"):
        pages.filled(page, {"one": "new", "two": "newer"}, "p")


def lead(mean, error, even=1.0, texts=20):
    """An estimate with this standard error over texts."""
    spread = error * np.sqrt(texts - 1)
    return statistics.Estimate(mean, np.resize([spread, -spread], texts), even)


def test_a_value_is_judged_by_its_interval_and_by_the_size_of_the_paper():
    sized, behind = {"size": [1.07, 1.22]}, {"expect": "behind", "size": [0.8, 0.84]}
    for value, claim, expected in [
        (lead(1.15, 0.02), {}, ("ahead", "holds")),
        (lead(0.85, 0.02), {}, ("behind", "fails")),
        (lead(1.03, 0.02), {}, ("open", "open")),
        (lead(1.15, 0.02), sized, ("ahead", "holds")),
        (lead(1.03, 0.01), sized, ("ahead, by less", "sign")),
        (lead(1.43, 0.02), sized, ("ahead, by more", "sign")),
        (lead(0.99, 0.02), sized, ("level", "fails")),  # the paper's least lead is excluded
        (lead(1.04, 0.03), sized, ("open", "open")),
        (lead(0.84, 0.06), behind, ("behind", "holds")),
        (lead(0.92, 0.02), behind, ("behind, by less", "sign")),
        (lead(1.16, 0.06), behind, ("ahead", "fails")),
        (lead(1.0, 0.002), {"within": 0.01}, ("same", "holds")),
        (lead(0.96, 0.017), {"within": 0.01}, ("open", "open")),
        (lead(0.9, 0.017), {"within": 0.01}, ("differs", "fails")),
        # Three seeds: Student's t, 4.3 standard errors.
        (lead(-2.7, 0.7, 0.0, 4), {}, ("behind", "fails")),
        (lead(-2.7, 0.9, 0.0, 4), {}, ("open", "open")),
        (
            statistics.rank_correlation([*range(8), 15, 14, 13, 12, 11, 10, 9, 8]),
            {},
            ("ahead", "holds"),
        ),
        (
            statistics.rank_correlation(
                [8, 3, 7, 2, 6, 1, 5, 0, 4, 9, 2.5, 1.5, 3.5, 5.5, 6.5, 0.5]
            ),
            {"size": [0.5, 1]},
            ("level", "fails"),
        ),
    ]:
        assert claims.judge(value, claim) == expected, (value, claim)


def test_a_claim_that_differs_by_the_setting_is_mixed_and_the_index_counts_it():
    for kinds, expected in [
        (["holds", "holds"], "holds"),
        (["holds", "sign"], "sign"),
        (["holds", "fails"], "mixed"),
        (["holds", "open"], "mixed"),
        (["open"], "open"),
        ([], "not run"),
    ]:
        assert claims.verdict(kinds) == expected
    told = claims.index({"x": ("X", ["holds", "sign", "mixed", "mixed", "not shown", "reported"])})
    assert told.endswith("| [X](results/x.md) | 1 | 1 | 2 | 0 | 0 | 1 | 0 |")


def counted(monkeypatch, rows):
    """Makes these the rows of all files."""
    rows = [{"pair": "a, b", "short": "a", "bench": "rsd"} | row for row in rows]
    monkeypatch.setattr(observations, "rows", lambda name: rows)
    monkeypatch.setattr(values, "observations", lambda kind: list(observations.KINDS[kind]()))


def test_verdicts_of_a_page_are_those_of_its_rows(monkeypatch):
    eta = dict(speculative_decoding=2.0, spectr=2.2, rsd_c=2.4, rsd_s=2.6)
    trees = {
        (method, shape)
        for groups in EXPERIMENTS.values()
        for group in groups.values()
        for method, shapes in group.items()
        for shape in shapes
        if method in eta
    }
    rows = [
        {"method": method, "shape": list(shape), "temperature": temperature, "top_p": 1.0}
        # Texts of unlike lengths: only the ratio is the same.
        | {"calls": [10, 20], "tokens": [eta[method] * 10 - 0.1, eta[method] * 20 + 0.1]}
        | {"levels": [METHODS[method].length(shape) * calls for calls in (10, 20)], "seed": 0}
        | {"short": short}
        for method, shape in trees
        for temperature in (0.3, 1.0)
        for short in ("smollm2-135m", "jspec-7m")
    ]
    found = {}
    for rsd_s in (2.6, 1.5):
        for row in rows:
            if row["method"] == "rsd_s" and row["short"] == "jspec-7m" and row["temperature"] == 1:
                row["tokens"] = [rsd_s * 10 - 0.1, rsd_s * 20 + 0.1]
        counted(monkeypatch, rows)
        told, _ = claims.matrix(pages.papers()["rsd"])
        found[rsd_s] = {line.split(" | ")[0][2:]: line for line in told.splitlines()}
    name = "5.1, by draft length, T 1: **RSD-S ahead of SD**"
    assert "+30 ± 0% (4/4) ahead | +30 ± 0% (4/4) ahead |  | **holds** |" in found[2.6][name]
    assert "+30 ± 0% (4/4) ahead | -25 ± 0% (0/4) behind |  | mixed |" in found[1.5][name]
    # Temperatures are apart: the other one is as it was.
    other = name.replace("T 1", "T 0.3")
    assert found[2.6][other] == found[1.5][other]


def test_methods_of_a_line_are_compared_on_the_same_texts(monkeypatch):
    same = {"temperature": 0.3, "tree": "chain", "new": 64, "calls": [10, 10]}
    same |= {"device": "cpu", "jax": "0", "date": "d"}
    counted(
        monkeypatch,
        [
            same | {"verifier": verifier, "seed": seed, "tokens": [each, each]}
            for verifier, seed, each in [("K-SEQ", 0, 20), ("GBV", 0, 21), ("GBV", 1, 90)]
        ],
    )
    paper = pages.papers()["rsd"]
    only = [table for table in paper["tables"] if table["region"] == "verifiers"]
    told = tables.tables(paper | {"tables": only})["rsd", "verifiers"]
    assert "| a | 0.3 | chain | 2 |  | 2.00 ± 0.00 | **2.10 ± 0.00** |" in told
