"""The page of `jspec trace` in a browser, as a reader uses it."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import traces

from jspec.cli.trace.page import page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; install jspec-jax[browser]"
)
pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A browser in a container, as root, that asks nobody for anything.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
ROUNDS = 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is on the path; install Debian's chromium")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=found, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("pages")
    about = {"model": "jspec-7m", "method": "merge", "sampling": "temperature 0.8, seed 1"}
    for name, trace in {
        "greedy": traces.made(ROUNDS, 24),
        "sampled": traces.made(ROUNDS, 24, sampled=True),
        "fixed": traces.made(ROUNDS, 12, chosen=False),
        "large": traces.made(200, 80),
        "one": traces.made(1, 1, chosen=False),
        "none": traces.made(0, 1),
    }.items():
        (place / f"{name}.html").write_text(page(trace, traces.Words(), about), "utf-8")
    return place


Open = Callable[..., Any]


@pytest.fixture
def show(browser, folder) -> Iterator[Open]:
    """`show(name, hash, **context)`: the page. At the end nothing may have gone wrong or out."""
    contexts, said, asked = [], [], []

    def opened(name: str = "greedy", at: str = "", **options):
        context = browser.new_context(**options)
        contexts.append(context)
        shown = context.new_page()
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("request", lambda request: asked.append(request.url))
        shown.on("dialog", lambda dialog: said.append(dialog.message))
        shown.goto((folder / f"{name}.html").as_uri() + at)
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert said == [], "the console is silent"
    assert all(re.match(r"file://.*\.html", url) for url in asked), "nothing is asked for"


def current(shown) -> int:
    return int(shown.inner_text("#round-title").split()[1])


def test_the_text_is_the_generation(show):
    trace = traces.made(ROUNDS, 24)
    words = traces.Words()
    said = words.decode(trace.prompt) + words.decode(trace.tokens)
    shown = show("greedy", "#round=3")
    assert shown.text_content("#text") == said
    assert shown.inner_text("#figures").count(str(len(trace.tokens))) >= 1
    assert shown.locator("script").count() == 2, "no text became markup"


def test_keys_clicks_and_addresses_go_from_round_to_round_and_it_plays(show):
    shown = show()
    for key, at in [
        ("ArrowRight", 2), ("j", 3), ("ArrowLeft", 2), ("k", 1), ("k", 1), ("End", ROUNDS),
        ("j", ROUNDS), ("Home", 1),
    ]:  # fmt: skip
        shown.keyboard.press(key)
        assert current(shown) == at, key
        assert shown.evaluate("location.hash") == f"#round={at}"
    shown.locator(".group").nth(16).locator(".t").first.click()
    assert current(shown) == 17 and shown.locator(".group.future").count() == ROUNDS - 17
    shown.evaluate("location.hash = '#round=7'")
    shown.get_by_text("Round 7 of").wait_for()
    assert current(show("greedy", "#round=9999")) == ROUNDS
    assert current(show("greedy", "#round=x")) == 1
    shown = show(reduced_motion="reduce")
    shown.keyboard.press("p")
    shown.get_by_text("Round 2 of").wait_for()
    shown.keyboard.press("p")
    assert shown.get_attribute("#play", "aria-pressed") == "false"
    shown.keyboard.press("?")
    at = current(shown)
    shown.keyboard.press("j")
    assert shown.is_visible("#help") and current(shown) == at, "keys of the page rest meanwhile"
    shown.keyboard.press("Escape")
    dark = "getComputedStyle(document.body).backgroundColor"
    before = shown.evaluate(dark)
    shown.keyboard.press("t")
    shown.reload()
    assert not shown.is_visible("#help") and shown.evaluate(dark) != before, "a theme is kept"
    shown = show("none", viewport={"width": 320, "height": 800})
    assert shown.inner_text("#round-title") == "No round"
    assert shown.evaluate("document.documentElement.scrollWidth") <= 320


def test_every_round_can_be_shown_and_read_with_the_keyboard(show):
    shown = show("sampled")
    trace = traces.made(ROUNDS, 24, sampled=True)
    for one in trace.rounds:
        assert shown.locator(".node").count() == len(one.tokens) + 1
        assert shown.locator(".node.accepted").count() == len(one.path) - 1
        assert shown.locator(".node.bonus").count() == 1
        assert shown.locator(".node.rejected").count() == one.num_verified - len(one.path)
        shown.keyboard.press("j")
    focused = "document.activeElement.getAttribute('aria-label')"
    shown.keyboard.press("ArrowDown")
    assert shown.evaluate("document.activeElement.getAttribute('role')") == "treeitem"
    first = shown.evaluate(focused)
    shown.keyboard.press("ArrowUp")
    assert shown.evaluate(focused) != first


def test_the_largest_sum_of_log_p_and_noise_wins(show):
    shown = show("sampled", "#round=2")
    shown.locator(".node.root").click()
    rows = shown.locator(".candidates tbody tr")
    sums = [number(row.locator(".sum .amount")) for row in rows.all()]
    assert len(sums) > 1
    assert max(sums) == number(shown.locator(".candidates .winner .sum .amount"))
    assert "no draft can change it" in shown.inner_text("#target")
    greedy = show("greedy", "#round=2")
    greedy.locator(".node.root").click()
    assert "noise" not in greedy.inner_text("#target")


def number(cell) -> float:
    return float(cell.inner_text().replace("\N{MINUS SIGN}", "-"))


def test_the_width_and_probabilities_are_explained(show):
    trace = traces.made(ROUNDS, 24)
    shown = show("greedy", "#round=5")
    choice = trace.rounds[4].choice
    winner = shown.locator(".widths .winner th").inner_text()
    assert winner == str(choice.widths[choice.index])
    assert shown.locator(".widths tbody tr").count() == len(choice.widths)
    assert "Fixed" in show("fixed").inner_text("#width")
    trace = traces.made(ROUNDS, 24)
    number, one = next((i, one) for i, one in enumerate(trace.rounds, 1) if len(one.path) > 2)
    shown = show("greedy", f"#round={number}")
    node = shown.locator(".node.accepted").nth(1)
    alone = node.locator(".prob").inner_text()
    shown.keyboard.press("a")
    along = shown.locator(".node.accepted").nth(1).locator(".prob").inner_text()
    probs = 100 * one.probs[one.path[1:3]].astype(float)
    assert float(alone) == pytest.approx(probs[1], abs=0.51)
    assert float(along) == pytest.approx(probs[0] * probs[1] / 100, abs=0.51)


def test_offers_can_be_hidden(show):
    trace = traces.made(200, 80)
    shown = show("large")
    number = next(i for i, one in enumerate(trace.rounds) if 1 < one.num_verified < 60)
    shown.goto(shown.url.split("#")[0] + f"#round={number + 1}")
    one = trace.rounds[number]
    few, many = one.num_verified + 1, len(one.tokens) + 1
    assert shown.locator(".node").count() == few, "hidden at first where there is much of it"
    shown.keyboard.press("o")
    assert shown.locator(".node").count() == many
    shown.keyboard.press("o")
    assert shown.locator(".node").count() == few
