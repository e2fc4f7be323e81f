"""The accelerator's bench, with a model of two layers on whatever device there is."""

from dataclasses import replace

import jax
import pytest

from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator.rounds import FORCED, share_of
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
    def fail():
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    found = [({"width": 64}, fail), ({"width": 1}, lambda: {"seconds": [1.0]})]
    monkeypatch.setattr(command, "SECTIONS", {"some": lambda shape: found})
    file = tmp_path / "rows.jsonl"
    assert command.run(["some"], file, 0, TINY) == ["some, 64", "some, 1"]
    assert command.run(["some"], file, 60, TINY) == []
    first, second = rows(file)
    assert first["error"] == "RuntimeError: RESOURCE_EXHAUSTED: out of memory"
    assert second["seconds"] == [1.0] and second["section"] == "some"
    assert {"date", "device", "jax", "kind", "shape"} <= set(second)
    before = file.read_text("utf-8")
    assert command.run(["some"], file, 60, TINY) == []
    assert file.read_text("utf-8") == before


@pytest.mark.slow
def test_every_section_has_rows_without_errors_in_its_order(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert command.run(list(command.SECTIONS), file, 600, TINY) == []
    found = rows(file)
    assert list(dict.fromkeys(row["section"] for row in found)) == [
        "passes", "heads", "kernels", "shares", "drafts", "rounds",
    ]  # fmt: skip
    assert not [row["error"] for row in found if "error" in row]
    tokens = {(row["method"], row["forced"]): row["tokens"] for row in found if "tokens" in row}
    assert tokens["plain", None] == 1
    assert tokens["rsd_s 5x4", "the paper, XSum"] > tokens["rsd_s 5x4", "SmolLM2, T 0.3"] > 1
