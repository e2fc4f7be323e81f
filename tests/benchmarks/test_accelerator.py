"""The accelerator's bench, with a model of two layers on whatever device there is."""

import threading
from dataclasses import replace

import jax
import pytest

from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator.sections import FORCED, Cell, share_of
from benchmarks.accelerator.shapes import SHAPES, random_weights
from benchmarks.ledger import read as rows

TINY = SHAPES["tiny"]


def test_the_large_shape_is_llama_2_7b():
    large = SHAPES["7B"]

    def weights(layers: int) -> int:
        model = large.model(replace(large.target, num_layers=layers))
        return sum(
            leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: random_weights(model)))
        )

    one, two = weights(1), weights(2)
    assert one + (large.target.num_layers - 1) * (two - one) == 6_738_415_616
    assert large.past + 7 * large.num_rounds < large.capacity


def test_forced_shares_give_the_tokens_that_are_asked_for():
    for tokens in (one for forced in FORCED.values() for one in forced.values()):
        share = share_of(tokens, 4)
        assert sum(share**level for level in range(5)) == pytest.approx(tokens)


def test_rows_are_measured_once_failures_are_rows_and_what_is_left_is_said(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    both = threading.Barrier(2, timeout=60)  # two are prepared at once
    found = [
        Cell({"width": 64}, fail, both.wait),
        Cell({"width": 1}, lambda made: {"seconds": [1.0 + 0 * made]}, both.wait),
        Cell({"width": 2}, lambda made: {"seconds": made}, fail),
    ]
    monkeypatch.setattr(command, "SECTIONS", {"some": lambda shape: found})
    file = tmp_path / "rows.jsonl"
    assert command.run(["some"], file, 0, TINY) == ["some, 64", "some, 1", "some, 2"]
    assert command.run(["some"], file, 120, TINY) == []
    first, second, third = rows(file)
    assert first["error"] == third["error"] == "RuntimeError: RESOURCE_EXHAUSTED: out of memory"
    assert second["seconds"] == [1.0] and second["section"] == "some"
    assert {"date", "device", "jax", "kind", "shape"} <= set(second)
    before = file.read_text("utf-8")
    assert command.run(["some"], file, 60, TINY) == []
    assert file.read_text("utf-8") == before


@pytest.mark.slow
def test_every_section_has_rows_without_errors_in_its_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rows.jsonl"
    assert command.run(list(command.SECTIONS), file, 900, TINY) == []
    found = rows(file)
    assert list(dict.fromkeys(row["section"] for row in found)) == list(command.SECTIONS)
    assert not [row["error"] for row in found if "error" in row]
    tokens = {(row["method"], row["forced"]): row["tokens"] for row in found if "tokens" in row}
    assert tokens["rsd_s 5x4", "the paper, XSum"] > tokens["rsd_s 5x4", "SmolLM2, T 0.3"] > 1
    different = {
        (row["dtype"], row["one_shape"]): row["different"]
        for row in found
        if "nodes" in row and "one_shape" in row
    }
    assert different["bfloat16", 16] == different["float32", 16] == 0
    assert all((tmp_path / row["rows"]).is_file() for row in found if row["section"] == "answers")
