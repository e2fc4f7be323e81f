"""Answers that are plain decoding's are counted, one by one, and methods are counted once."""

import pytest
from typer.testing import CliRunner

from benchmarks import exactness
from benchmarks.ledger import read


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_token_that_differs_is_an_answer_less_and_the_exit_code(tmp_path, monkeypatch, wrong):
    calls = []

    def answers(llm, prompts, batch_size, new_tokens):
        calls.append(llm)
        assert batch_size == 2 and new_tokens == 4 and sorted(prompts, key=len) == prompts
        return [[1, 2, 3, 4], [5, 6 + wrong * (len(calls) == 2)]], 5 - len(calls)

    monkeypatch.setattr(exactness, "_answers", answers)
    file = tmp_path / "rows.jsonl"
    words = ["tokens", "--model", "jspec-800k", "--methods", "suffix", "--nodes", "3", "--limit"]
    words += ["2", "--batch-size", "2", "--new-tokens", "4", "--batch-invariant", "4"]
    for _ in range(2):  # the second time plain decoding alone is run
        ran = CliRunner().invoke(exactness.main, [*words, "--out", str(file)])
        assert ran.exit_code == wrong, ran.output
    assert len(calls) == 3 and calls[1].drafter.num_speculative_tokens == 3
    assert calls[0].model == calls[1].model and calls[0].model.attention_impl.num_tokens == 4
    plain, suffix = read(file)
    assert (plain["equal"], suffix["equal"]) == (2, 2 - wrong)
    assert plain["tokens"] == 6 and plain["rounds"] == 4 and suffix["rounds"] == 3
