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


def test_a_picture_needs_no_background():
    text = (PICTURES / "dyspec_smollm2-135m_tokens.svg").read_text("utf-8")
    assert "fill: #ffffff" not in text and 'style="fill: none' in text


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


def test_the_index_counts_the_verdicts_of_a_page():
    for verdict, counts in [
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
    ]:
        told = claims.index({"x": ("X", [("a *b*", "1 *c*", "2", verdict)])})
        assert told.endswith(f"| [X](results/x.md) | {counts} |")


def counted(monkeypatch, rows):
    """Makes these the rows of all files."""
    rows = [{"pair": "a, b", "short": "a", "bench": "rsd"} | row for row in rows]
    monkeypatch.setattr(observations, "rows", lambda name: rows)
    monkeypatch.setattr(values, "observations", lambda kind: list(observations.KINDS[kind]()))


def one_claim(rule, **more):
    judged = {"claim": "", "paper": "", "here": "{lead:%}", "verdict": f"{{lead:{rule}}}"}
    order = {"rows": "verifiers", "each": ["pair"], "values": {"lead": ["x", "/", "y"]}}
    return {"names": {}, "claims": [judged | order | {"common": "all"} | more]}


def test_a_verdict_that_differs_by_the_pair_counts_as_mixed(monkeypatch):
    ahead, behind = [20, 22, 24], [5, 6, 7]
    for of, kind, least in [
        ([ahead, ahead], "holds", "holds"),
        ([behind], "does not hold", "does not hold"),
        ([ahead, behind], "mixed", "does not hold"),
        ([[10, 11, 9]], "open", "open"),
    ]:
        rows = [
            {"pair": str(pair), "verifier": verifier, "seed": 0, "tokens": of, "calls": [10] * 3}
            for pair, found in enumerate(of)
            for verifier, of in (("x", found), ("y", [10, 10, 10]))
        ]
        counted(monkeypatch, rows)
        for rule, expected in (("each", kind), ("least", least)):
            *_, verdict = claims.claims(one_claim(rule))[0]
            assert claims.kind(verdict) == expected
    *_, verdict = claims.claims(one_claim("least questions"))[0]
    assert verdict == "*open*: 3 questions are too few"
    *_, here, verdict = claims.claims(one_claim("least", where={"pair": "none"}))[0]
    assert (here, verdict) == ("", "*open*: not counted yet")


ETA = dict(speculative_decoding=2.0, spectr=2.2, rsd_c=2.4, rsd_s=2.6, dyspec=2.5, coupled_tree=3.0)


@pytest.mark.parametrize(("rsd_s", "verdict"), [(2.6, "*holds*"), (1.5, "*does not hold*")])
def test_verdicts_of_a_page_are_those_of_its_rows(rsd_s, verdict, monkeypatch):
    eta = ETA | {"rsd_s": rsd_s}
    trees = {
        (method, shape)
        for groups in EXPERIMENTS.values()
        for group in groups.values()
        for method, shapes in group.items()
        for shape in shapes
    }
    counted(
        monkeypatch,
        [
            {"method": method, "shape": list(shape), "temperature": 0.3, "top_p": 1.0, "seed": 0}
            # Texts of unlike lengths: only the ratio is the same.
            | {"calls": [10, 20], "tokens": [eta[method] * 10 - 0.1, eta[method] * 20 + 0.1]}
            | {"levels": [METHODS[method].length(shape) * calls for calls in (10, 20)]}
            for method, shape in trees
        ],
    )
    judged = {told: rest for told, *rest in claims.claims(pages.papers()["rsd"])}
    _, here, found = judged["RSD-S over SD by draft length, Eff. (5.1)"]
    assert found.startswith(verdict)
    assert here == f"a, T 0.3: {100 * (rsd_s / 2 - 1):+.0f}%"
    assert judged["SD over RSD-C at 6 and 10, Eff. (5.2)"][-1].startswith("*does not hold*")


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


def test_a_column_is_left_out_for_a_pair_whose_own_ratio_others_have():
    spec = {"columns": [{"head": "MBSU {ratio:.3g}", "unless": [0.12, 0.0164]}, {"head": "x"}]}
    for own, there in [(1.0, 2), (0.1196, 1)]:
        assert len(list(tables._columns(spec, {}, {"ratio": own}))) == there
