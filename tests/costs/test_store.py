"""Cost curves on disk: what was written is read, and only where it holds."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import tiny

import jspec
from jspec._validate.errors import InputError
from jspec.costs import CostCurve, load, save, setting
from jspec.testing import PrefixLM

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
