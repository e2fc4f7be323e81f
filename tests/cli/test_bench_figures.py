"""The figures of a bench, its last sentence and its tables, from hand-made rows."""

import io
import math
import re

import pytest
from rich.console import Console

from jspec.cli.bench import statistics, tables, verdict
from jspec.cli.bench.settings import PLAIN


def row(method, prompt, seconds, **changes):
    """Ten tokens in five rounds; plain decoding took 1.1 seconds, 0.1 of them to read."""
    made = {
        "method": method, "peer": False, "prompt": prompt, "question": f"q{prompt}",
        "category": "ab"[prompt % 2], "turn": 0, "num_tokens": 10, "num_rounds": 5,
        "seconds": [seconds] * 3, "prefill_seconds": [0.1] * 3, "plain_seconds": [1.1] * 3,
        "plain_prefill_seconds": [0.1] * 3, "num_together": 1, "num_tokens_together": 10,
        "plain_num_tokens_together": 10, "compared": True, "first_difference": None,
    }  # fmt: skip
    return made | changes


def plain(count):
    return [row(PLAIN, place, 1.1, num_rounds=10) for place in range(count)]


def made(gains, **changes):
    """A report of one method with these speed-ups."""
    rows = plain(len(gains))
    rows += [row("quick", place, 1.1 / gain, **changes) for place, gain in enumerate(gains)]
    return statistics.report(rows, [PLAIN, "quick"])


def test_a_mean_of_ratios_is_geometric():
    assert statistics.geometric_mean([0.25, 4.0]) == pytest.approx(1)
    assert math.isnan(statistics.geometric_mean([]))
    mean, low, high = statistics.spread([1.0, 2.0, 4.0])
    assert mean == pytest.approx(2) and low < 2 < high and low * high == pytest.approx(4)


def test_a_speedup_is_the_median_of_neighbours():
    assert statistics.first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert statistics.first_difference([1], [1, 9]) == 1
    assert statistics.first_difference([], []) is None
    one = row("quick", 0, 0) | {"seconds": [0.5, 1.0, 0.2], "plain_seconds": [1.0, 1.5, 9.0]}
    assert statistics.speedup(one) == pytest.approx(2)
    longer = one | {"num_tokens_together": 15}
    assert statistics.speedup(longer) == pytest.approx(3)
    # Without the prompt: 0.9 / 0.4, 1.4 / 0.9 and 8.9 / 0.1, where medians' ratio is 1.4 / 0.4;
    # what a busy machine held up in one repeat says nothing of the prompt.
    one["prefill_seconds"], one["plain_prefill_seconds"] = [0.1, 0.1, 9.0], [0.1, 0.1, 0.2]
    assert statistics.decode_speedup(one) == pytest.approx(2.25)
    assert statistics.decode_speedup(one | {"prefill_seconds": [0.19] * 3}) is None


def test_reading_the_prompt_counts_apart_and_together():
    (found,) = (made([2.0]).summaries["quick"],)
    assert found.speedup == pytest.approx(2) and found.decode_speedup == pytest.approx(1 / 0.45)
    assert found.tokens_per_round == 2 and found.tokens_per_second == pytest.approx(10 / 0.55)
    assert found.decode_tokens_per_second == pytest.approx(10 / 0.45)
    # A clock that cannot tell the two apart says nothing of the answer alone.
    assert statistics.decode_seconds(row("quick", 0, 0.1)) is None
    # A model that writes nothing has figures.
    none = dict(num_tokens=0, num_tokens_together=0, plain_num_tokens_together=0, num_rounds=0)
    rows = [row(PLAIN, 0, 1.1, **none), row("quick", 0, 0.55, **none)]
    assert statistics.report(rows, [PLAIN, "quick"]).summaries["quick"].speedup == pytest.approx(2)
    # Rows that ran together share their seconds.
    rows = [row(PLAIN, i, 1.0, num_together=2, num_tokens_together=20) for i in range(2)]
    assert statistics.summarise(PLAIN, rows).tokens_per_second == pytest.approx(20)


SENTENCES = [
    ([2.0, 2.1, 1.9, 2.0, 2.05], r"^Use quick here: 2\.01 times .* of 5 prompts .*tokens are the"),
    ([3.0, 0.9, 3.1, 0.9, 3.0, 0.9, 3.0], r"^Use quick here: .*, but 0\.90 in b\)"),
    ([0.5, 0.6, 0.5, 0.6, 0.5], r"^Plain decoding is best here: quick, .* ran at 0\.54 times"),
    ([3.0, 0.5, 3.0, 0.5, 0.9], r"^Plain decoding is as good here: .* the noise of 5 prompts"),
    ([2.0, 2.0], r"^quick was the fastest method, at 2\.00 .*, but 2 prompts cannot tell"),
    ([2.0], r"but 1 prompt cannot tell"),
]


def test_the_last_sentence():
    for gains, said in SENTENCES:
        assert re.search(said, verdict.sentence(made(gains)))
    report = statistics.report(plain(3), [PLAIN])
    assert "no method to recommend" in verdict.sentence(report) and verdict.notes(report) == []


def test_other_tokens_are_reported():
    report = made([2.0] * 5, first_difference=3)
    (note,) = verdict.notes(report)
    assert "in 5 of 5 prompts, first in question q0 at token 4" in note
    assert "other tokens in 5 of 5 prompts" in verdict.sentence(report)
    assert tables.agreement(report.summaries["quick"]) == "others in 5 of 5"


def test_a_faster_peer_is_not_recommended():
    rows = [*plain(5), *(row("quick", i, 0.5) for i in range(5))]
    rows += [row("peer", i, 0.25, peer=True) for i in range(5)]
    report = statistics.report(rows, [PLAIN, "quick", "peer"])
    assert verdict.sentence(report).startswith("Use quick here")
    beside, note = verdict.notes(report)
    assert beside == (
        "Compared with peer: quick 0.50 times as fast, plain decoding 0.23 times (geometric "
        "means of 5 prompts)."
    )
    assert note.startswith("peer was faster than all of jspec: 4.40 times")


def test_times_that_are_not_steady_are_told():
    rows = [*plain(5), *(row("quick", i, 0.5) | {"seconds": [0.5, 0.7, 0.5]} for i in range(5))]
    report = statistics.report(rows, [PLAIN, "quick"])
    (note,) = verdict.notes(report)
    assert note.startswith("The machine was busy") and "for quick;" in note
    # A machine that is slower for a whole turn slows both: that changes no figure.
    slower = {"plain_seconds": [1.1, 2.2, 1.1], "seconds": [0.5, 1.0, 0.5]}
    rows = [*plain(5), *(row("quick", i, 0.5) | slower for i in range(5))]
    report = statistics.report(rows, [PLAIN, "quick"])
    assert report.summaries["quick"].repeats == (1, 1) and verdict.notes(report) == []
    assert "Use quick here: 2.20 times" in verdict.sentence(report)


def test_repeats_are_compared_within_their_prompt():
    """Ratios 1, 2, 3 and 4, 4, 6 over their medians: 0.5, 1, 1, 1, 1.5, 1.5."""
    first = row("quick", 0, 0) | {"plain_seconds": [1.0, 2.0, 3.0], "seconds": [1.0] * 3}
    second = row("quick", 1, 0) | {"plain_seconds": [2.0, 4.0, 3.0], "seconds": [0.5, 1.0, 0.5]}
    assert statistics.repeats_differ([first, second]) == pytest.approx((1, 1.375))
    assert "1.00 .. 1.38" in tables.cells(statistics.summarise("quick", [first, second]))


def test_the_tables_hold_every_contender_and_class():
    """Of any name: brackets are not markup."""
    names = ["a [/b] class", r"[red]cost $\frac{$"]
    rows = plain(4) + [row("quick", place, 1.1 / (2 - place % 2)) for place in range(4)]
    rows = [one | {"category": names[one["prompt"] % 2]} for one in rows]
    screen = Console(record=True, width=120, file=io.StringIO())
    report = statistics.report(rows, [PLAIN, "quick"])
    tables.show(screen, report, {"llama.cpp": "llama_cpp is not installed"})
    out = screen.export_text()
    assert re.search(r"quick +2\.00 .* 1\.41x \(", out)
    assert "llama_cpp is not installed" in out
    for name, gain in zip(names, ("2.00x", "1.00x"), strict=True):
        assert re.search(rf"^ {re.escape(name)} +2 +{gain}, 2\.00 *$", out, re.M), out
