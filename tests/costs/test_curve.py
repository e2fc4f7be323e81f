"""Cost curves against numpy: between points and beyond them."""

import jax
import numpy as np
import pytest

from jspec._validate.errors import InputError
from jspec.costs import CostCurve


def line(x, known, values):
    """Piecewise linear, level before the first point, straight on beyond the last."""
    inside = np.interp(x, known, values)
    if len(known) == 1:
        return inside
    slope = max((values[-1] - values[-2]) / (known[-1] - known[-2]), 0)
    return inside + np.maximum(np.asarray(x) - known[-1], 0) * slope


def at(curve, tokens):
    """The curve's times; all arrays have one size, so that their operations compile once."""
    return np.asarray(curve.at(np.resize(tokens, 64)))[: len(tokens)]


def random_points(rng, count):
    tokens = np.sort(rng.choice(np.arange(1, 200), count, replace=False))
    return tokens, 0.01 + np.cumsum(rng.uniform(0, 0.01, count))


def test_between_and_beyond_the_points():
    for count in (1, 2, 5, 15, 16, 17, 40):
        tokens, seconds = random_points(np.random.default_rng(count), count)
        points = dict(zip(tokens.tolist(), seconds.tolist(), strict=True))
        shuffled = dict(sorted(points.items(), key=lambda item: item[1] % 1e-3))
        wanted = [1, 2, 3, 50, 150, *tokens.tolist(), 260, 900]
        for curve in (CostCurve.of(points), CostCurve.of(shuffled)):
            np.testing.assert_allclose(at(curve, wanted), line(wanted, tokens, seconds), rtol=1e-4)
            # At the points themselves nothing is rounded but the number.
            np.testing.assert_array_equal(at(curve, tokens), np.float32(seconds))


def test_a_line_of_noise_stays_positive_and_does_not_fall():
    curve = CostCurve.of({1: 0.5, 4: 0.9, 8: 0.2})
    np.testing.assert_allclose(at(curve, [8, 9, 1000]), 0.2, rtol=1e-6)
    assert (at(CostCurve.of({5: 1e-9}), [1, 5, 99]) > 0).all()


def test_another_curve_compiles_nothing():
    """Whatever its points, up to as many as every curve has."""
    traced = []

    @jax.jit
    def seconds(curve):
        traced.append(1)
        return curve.at([1, 7])

    for count in (1, 2, 9, 16):
        tokens, times = random_points(np.random.default_rng(count), count)
        seconds(CostCurve.of(dict(zip(tokens.tolist(), times.tolist(), strict=True))))
    assert len(traced) == 1


def test_points_that_make_no_curve():
    for points, said in (
        ({}, "a cost curve got {}, which has no points; give {tokens: seconds}, one or more"),
        (0.1, "a cost curve got 0.1, which has no points"),
        ({0: 1.0}, r"tokens of a round is 0; pass an integer in 1 \.\. 8388608"),
        ({2**24: 1.0}, "tokens of a round is 16777216; pass an integer in 1"),
        ({1.5: 1.0}, r"tokens of a round is 1\.5; pass an integer"),
        ({1: 0.0}, r"seconds of 1 tokens is 0\.0; pass a number x with 1e-12 <= x"),
        ({1: 1.0, 3: -1.0}, "seconds of 3 tokens is -1"),
        ({1: float("nan")}, "seconds of 1 tokens is nan"),
        ({2: float("inf")}, "seconds of 2 tokens is inf"),
        ({2: 1e-46}, "seconds of 2 tokens is 1e-46"),  # 0 in float32
        ({2: 1e300}, "seconds of 2 tokens is 1e[+]300"),  # infinite
    ):
        with pytest.raises(InputError, match=said):
            CostCurve.of(points)
