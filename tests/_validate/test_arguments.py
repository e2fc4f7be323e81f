"""Single numbers are checked in one way, and the message names value, bound and fix."""

import numpy as np
import refusals

from jspec._validate.arguments import check_integer
from jspec._validate.kinds import check_number


def test_numbers_within_their_bounds_pass_and_others_are_refused_in_one_sentence():
    for value in (1, 4, np.int64(2), np.uint8(1)):
        check_integer("nodes", value, 1, 4)
        check_integer("nodes", value, 1, None)
    said = r"^nodes is .*; pass an integer in 1 \.\. 4, why$"
    values = (0, 5, -1, 2.0, "3", None, True, int, [2], np.array(2), 1j)
    refusals.check(
        [(value, said) for value in values],
        lambda value: check_integer("nodes", value, 1, 4, "why"),
    )
    for value in (0, 0.5, np.float32(0.25), 1):
        check_number("share", value, 0, 1)
    said = r"^share is .*; pass a number x with 0 <= x <= 1"
    values = (-0.1, 1.1, float("nan"), "1", None, True, float, [0.5])
    cases = [(value, said) for value in values]
    refusals.check(cases, lambda value: check_number("share", value, 0, 1, "why"))


def test_a_bound_may_be_left_open_or_refused():
    number = r"cost is inf; pass a number x with 0 <= x < inf"
    refusals.check(
        [
            (
                lambda: check_integer("nodes", 0, 1, None),
                "nodes is 0; pass an integer of at least 1$",
            ),
            (lambda: check_number("cost", float("inf"), 0, None), number),
            (lambda: check_number("share", 1, 0, 1, below_high=True), "0 <= x < 1"),
            (lambda: check_number("share", 0, 0, 1, above_low=True), "0 < x <= 1"),
        ]
    )
