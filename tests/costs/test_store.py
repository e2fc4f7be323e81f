"""Cost curves on disk: what was written is read, under a name of all that decides about time."""

import json

import numpy as np
import pytest
import tiny

import jspec
from jspec._validate.errors import InputError
from jspec.costs import CostCurve, fingerprint, load, save
from jspec.testing import PrefixLM

CURVE = CostCurve.of({1: 0.02, 4: 0.03, 8: 0.05})


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "new folder" / "costs.json"
    save(CURVE, file)
    return file


def test_saved_costs_are_loaded(path):
    for curve in (CURVE, CostCurve.of({1: 1.0}, undrafted=0.5)):
        save(curve, path)
        copy = load(str(path))
        for name in ("tokens", "seconds", "undrafted"):
            mine, its = getattr(copy, name), getattr(curve, name)
            assert mine.dtype == its.dtype
            np.testing.assert_array_equal(mine, its)
    assert [file.name for file in path.parent.iterdir()] == ["costs.json"], "no part is left"


def test_a_fingerprint_is_of_all_that_decides_about_time():
    model = PrefixLM()
    params, here = model.init(), fingerprint(model, model.init(), jspec.Suffix())
    assert fingerprint(PrefixLM(), PrefixLM().init(seed=3), jspec.Suffix()) == here
    assert len(here) == 16 and int(here, 16) >= 0
    others = [
        fingerprint(PrefixLM(hidden_size=8), params, jspec.Suffix()),
        fingerprint(model, tiny.params(tiny.model()), jspec.Suffix()),
        fingerprint(model, params, jspec.Suffix(num_speculative_tokens=3)),
        fingerprint(model, params, jspec.Suffix(), jspec.Adaptive((0, 3))),
        fingerprint(model, params, jspec.Suffix(), batch_size=2),
        fingerprint(model, params, jspec.Suffix(), sampled=True),
    ]
    assert len({here, *others}) == 7


def test_damaged_files_are_refused_in_a_sentence(path):
    record = json.loads(path.read_text())
    for damage in (b"", b"{", b"[]", b"null", b"3", b"\xff\xfe\x00", b'{"seconds": {"1": 1}}'):
        path.write_bytes(damage)
        with pytest.raises(InputError, match=r"is not a cost file of jspec .*; measure anew with"):
            load(path)
    for name, value in (
        ("undrafted", []), ("undrafted", 0.0), ("seconds", [1.0]), ("seconds", {}),
        ("seconds", {"one": 0.1}), ("seconds", {"1": "fast"}), ("seconds", {"1": float("nan")}),
        ("seconds", {"1": -1.0}), ("seconds", {"0": 1.0}),
    ):  # fmt: skip
        path.write_text(json.dumps(record | {name: value}))
        with pytest.raises(InputError, match="is not a cost file of jspec"):
            load(path)


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path):
    with pytest.raises(OSError, match="absent"):
        load(tmp_path / "absent.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        save(CURVE, tmp_path / "file" / "costs.json")
