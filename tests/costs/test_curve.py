"""Cost curves against numpy, between points and beyond them; and on disk."""

import json
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest
import tiny

import jspec
from jspec._validate.errors import InputError
from jspec.costs import CostCurve, load, save, setting
from jspec.testing import PrefixLM


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


MODEL = PrefixLM()
HERE = setting(MODEL, MODEL.init(), jspec.Suffix())
CURVE = CostCurve.of({1: 0.02, 4: 0.03, 8: 0.05})


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "new folder" / "costs.json"
    save(CURVE, HERE, file)
    return file


def test_saved_costs_are_loaded(path):
    for curve in (CURVE, CostCurve.of({1: 1.0}, undrafted=0.5)):
        save(curve, HERE, path)
        found = load(str(path), HERE)
        for name in ("tokens", "seconds", "undrafted"):
            mine, its = getattr(found, name), getattr(curve, name)
            assert mine.dtype == its.dtype
            np.testing.assert_array_equal(mine, its)
    assert [file.name for file in path.parent.iterdir()] == ["costs.json"], "no part is left"


def test_a_setting_is_all_that_decides_about_time():
    params = MODEL.init()
    again = setting(PrefixLM(), PrefixLM().init(seed=3), jspec.Suffix())
    assert again == HERE and again.fingerprint == HERE.fingerprint
    assert len(HERE.fingerprint) == 16 and int(HERE.fingerprint, 16) >= 0
    others = [
        setting(PrefixLM(hidden_size=8), params, jspec.Suffix()),
        setting(MODEL, tiny.params(tiny.model()), jspec.Suffix()),
        setting(MODEL, params, jspec.Suffix(num_speculative_tokens=3)),
        setting(MODEL, params, jspec.Suffix(), batch_size=2),
        setting(MODEL, params, jspec.Suffix(), sampled=True),
    ]
    assert len({HERE.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_a_curve_of_another_setting_is_refused(path):
    for name in asdict(HERE):
        value = {"batch_size": 4, "sampled": True}.get(name, "something else")
        other = replace(HERE, **{name: value})
        said = f"was measured with {name} .*; measure anew with jspec"
        with pytest.raises(InputError, match=said):
            load(path, other)


def test_an_invalid_cost_file_is_refused(path):
    for damage in (b"", b"{", b"[]", b"null", b"3", b"\xff\xfe\x00", b'{"format": 5}'):
        path.write_bytes(damage)
        with pytest.raises(InputError, match=r"is not a cost file of jspec .*; measure anew with"):
            load(path, HERE)


def test_a_damaged_file_is_refused(path):
    held = json.loads(path.read_text())
    for name, value, said in (
        ("format", 2, "is a cost file of format 2 and this jspec reads format 5; measure anew"),
        ("undrafted", [], "has no curve of positive seconds"),
        ("undrafted", [0.0], "has no curve of positive seconds"),
        ("setting", {"model": "m"}, "is not a cost file of jspec"),
        ("setting", [1], "is not a cost file of jspec"),
        ("setting", asdict(HERE) | {"colour": "red"}, "is not a cost file of jspec"),
        ("seconds", [[1.0, 2.0], [3.0]], "is not a cost file of jspec"),
        ("seconds", "fast", "is not a cost file of jspec"),
        ("seconds", [1.0, 2.0], "has no curve of positive seconds, one for each point; measure"),
        ("seconds", [[0.1] * 16], "has no curve of positive seconds"),
        ("seconds", [0.1] * 15 + [0.0], "has no curve of positive seconds"),
        ("seconds", [0.1] * 15 + [float("nan")], "has no curve of positive seconds"),
        ("seconds", [0.1] * 15 + [float("inf")], "has no curve of positive seconds"),
        ("tokens", list(range(16, 0, -1)), "has no curve of positive seconds"),
        ("tokens", 3, "has no curve of positive seconds"),
    ):
        path.write_text(json.dumps(held | {name: value}))
        with pytest.raises(InputError, match=said):
            load(path, HERE)


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path):
    with pytest.raises(OSError, match="absent"):
        load(tmp_path / "absent.json", HERE)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        save(CURVE, HERE, tmp_path / "file" / "costs.json")
