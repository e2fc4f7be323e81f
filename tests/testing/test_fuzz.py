"""Whatever is drafted, the tokens are those of plain decoding."""

from pathlib import Path

import numpy as np
import pytest
import tiny

import jspec
import jspec.models
from jspec.testing import fuzz, fuzz_oracle
from jspec.testing.fuzz_drafter import FuzzShape
from jspec.testing.fuzz_oracle import accepted as longest

FIXTURES = Path(__file__).parents[1] / "models/fixtures"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_random_trees_change_no_token(seed):
    report = fuzz(rounds=7000, seed=seed)
    assert len(report.checked) == 7
    assert "trees of merge" in str(report)


@pytest.mark.slow
def test_the_fuzzer_takes_another_model():
    model = tiny.model()
    fuzz(model, tiny.params(model), rounds=700, in_merge=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_next", "deepseek_v3", "gemma4"])
def test_random_trees_change_no_token_of_a_family(name):
    """Recurrent states, latents, and layers that read the keys of others."""
    loaded = jspec.models.load(FIXTURES / name, with_tokenizer=False)
    fuzz(loaded.model, loaded.params, rounds=700, in_merge=False)


def test_wrong_use_is_an_input_error():
    with pytest.raises(jspec.InputError, match="at least 1"):
        fuzz(rounds=0)
    with pytest.raises(jspec.InputError, match="without a model"):
        fuzz(model_params={})


def test_trees_after_cuts():
    for tokens, parents, valid, depth, accepted in (
        ([9, 1, 2, 3], [-1, 0, 1, 2], "1111", 3, 3),
        ([9, 1, 2, 3], [-1, 0, 1, 2], "1111", 2, 2),
        ([9, 1, 2, 3], [-1, 0, 1, 2], "1101", 3, 1),
        ([9, 1, 2, 3], [-1, 0, 2, 2], "1111", 3, 1),
        # The first of equal siblings is the one whose children are read.
        ([9, 1, 1, 2], [-1, 0, 0, 2], "1111", 3, 1),
        ([9, 1, 1, 2], [-1, 0, 0, 1], "1111", 3, 2),
        # The root is there, whatever is said of it.
        ([5, 1, 2, 3], [2, 0, 1, 2], "0111", 3, 3),
    ):
        there = np.array([bit == "1" for bit in valid])
        shape = FuzzShape(num_nodes=4, depth=depth, width=3)
        text = np.array([1, 2, 3])
        found = longest(np.array(tokens), np.array(parents), there, None, shape, text, 23)
        assert found == accepted


@pytest.mark.slow
def test_a_broken_engine_would_be_caught(monkeypatch):
    """A drafter that is told a wrong text accepts less, which the fuzzer sees."""
    monkeypatch.setattr(fuzz_oracle, "accepted", lambda *tree: longest(*tree) + 1)
    with pytest.raises(AssertionError, match="right drafts are accepted"):
        fuzz(rounds=7, in_merge=False)
