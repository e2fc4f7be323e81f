"""Rounds of chosen widths, and their time on a given curve."""

import numpy as np
import pytest

import jspec
from benchmarks.speed import widths

WIDTHS, TIMES = (0, 3, 7), {0: 1.0, 3: 1.5, 7: 2.0}
CHOSEN = [[1, 2, 0], [0, 1, 1]]
ROWS = [
    {"widths": [3], "curve": None, "tokens": [6, 8], "rounds": [[4], [2]]},
    {"widths": [7], "curve": None, "tokens": [6, 8], "rounds": [[3], [2]]},
    {"widths": [*WIDTHS], "curve": [1.0, 1.5, 2.0], "tokens": [6, 8], "rounds": CHOSEN},
]


def test_the_time_of_rounds_is_read_off_the_curve():
    first, both = np.array([True, False]), np.ones(2, bool)
    assert widths.speed(ROWS[0], TIMES, first) == 6 / (4 * 1.5)
    assert widths.speed(ROWS[2], TIMES, first) == 6 / (1 + 2 * 1.5)
    assert widths.speed(ROWS[2], TIMES, both) == 14 / (1 + 3 * 1.5 + 2)


def test_a_choice_is_compared_with_the_best_fixed_width_of_each_class():
    shown = widths.table(ROWS, ["maths", "code"], TIMES)
    cells = {column.header: list(column.cells) for column in shown.columns}
    assert cells["width"] == ["0", "3", "7", "chosen", "of the best", "of the widest"]
    # Where all widths are slower, plain decoding is the best.
    assert cells["maths"] == ["1.00", "1.00", "1.00", "1.50", "150%", "150%"]
    assert cells["code"] == ["1.00", "2.67", "2.00", "2.29", "86%", "114%"]


@pytest.mark.parametrize("given", ["0", "3,7", "0,7,3", "0,3,3", "0,x", ""])
def test_what_is_no_ladder_is_refused(given):
    with pytest.raises(jspec.InputError, match=r"widths is|the first of widths is 3"):
        widths.widths_of(given)


@pytest.mark.parametrize("given", ["1,2", "1,2,x", "1,0,2", "1,nan,2"])
def test_what_is_no_curve_is_refused(given):
    with pytest.raises(jspec.InputError, match="curve"):
        widths.curve_of(given, WIDTHS)


def test_each_width_and_each_choice_is_a_contender():
    curves = [(1.0, 1.1, 1.2), (1.0, 2.0, 3.0)]
    found = list(widths.contenders(WIDTHS, curves))
    assert [(few, curve) for _, few, curve in found] == [
        ((3,), None), ((7,), None), (WIDTHS, curves[0]), (WIDTHS, curves[1])
    ]  # fmt: skip
