"""Curves of cost from the user's folder."""

import pytest

from jspec.costs import CostCurve
from jspec.sessions import round_costs


def test_an_invalid_curve_is_reported_and_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JSPEC_CACHE", str(tmp_path))
    curve = CostCurve.of({1: 0.020, 8: 0.034})
    file = tmp_path / "costs" / "64.json"

    def kept():
        return float(round_costs.kept("64", lambda: curve).at([8])[0])

    assert kept() == pytest.approx(0.034) and capsys.readouterr().err == ""
    file.write_text("[")
    assert kept() == pytest.approx(0.034) and "not a cost file" in capsys.readouterr().err
    assert kept() == pytest.approx(0.034) and capsys.readouterr().err == "", "it was replaced"
    file.unlink()
    (file / "full").mkdir(parents=True)
    for _ in range(2):
        assert kept() == pytest.approx(0.034)
        said = capsys.readouterr().err
        assert "Is a directory" in said and "what rounds cost is measured, and not kept" in said
