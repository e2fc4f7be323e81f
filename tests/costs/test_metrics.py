"""The figures of a run against a count of its rounds by hand."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from jspec.costs.metrics import Metrics, by_row, of
from jspec.testing import PrefixLM
from jspec.types import Stats

MODEL = PrefixLM()
WEIGHTS = MODEL.init()
ASK = dict(
    model=MODEL, params=WEIGHTS,
    prompt=np.array([[1, 2, 1, 2, 1], [3, 3, 3, 3, 3], [4, 5, 6, 4, 5]]), max_new_tokens=24,
)  # fmt: skip
# The line of vLLM's `SpecDecodingLogging.log`, with its format of each number.
VLLM = re.compile(
    r"SpecDecoding metrics: Mean acceptance length: (\d+\.\d\d), "
    r"Accepted throughput: (\d+\.\d\d) tokens/s, Drafted throughput: (\d+\.\d\d) tokens/s, "
    r"Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    r"Per-position acceptance rate: (\d\.\d{3}(?:, \d\.\d{3})*), "
    r"Avg Draft acceptance rate: (\d+\.\d)%"
)


def counted(**changes):
    """A run, and the accepted tokens of each of its rounds by row, counted while streaming."""
    drafter = jspec.PromptLookup(num_speculative_tokens=3, min_match=1)
    ask = ASK | dict(drafter=drafter) | changes
    rounds = [[] for _ in ask["prompt"]]
    for chunk in jspec.stream(**ask):
        for row, tokens in enumerate(chunk.tokens):
            if tokens:
                rounds[row].append(len(tokens) - 1)
    return jspec.decode(**ask).stats, rounds


def test_every_figure_follows_from_the_rounds():
    stats, rounds = counted()
    for row, accepted in zip(by_row(stats), rounds, strict=True):
        assert row.num_rounds == len(accepted) and row.num_accepted_tokens == sum(accepted)
        # Draft by draft, as vLLM's `observe_draft` counts.
        per_pos = [sum(count > place for count in accepted) for place in range(3)]
        assert row.num_accepted_tokens_per_pos == tuple(per_pos)
        assert sum(row.num_accepted_tokens_per_pos) == row.num_accepted_tokens
        assert row.tokens_per_round == pytest.approx(24 / len(accepted))
        assert row.mean_acceptance_length == 1 + sum(accepted) / row.num_drafts
        rates = [count / row.num_drafts for count in per_pos]
        assert row.acceptance_rate_per_pos == tuple(rates)
    together = of(stats)
    assert together.num_accepted_tokens == sum(map(sum, rounds)) > 0
    assert together == sum(by_row(stats), Metrics())
    drafted = int(stats.num_draft_tokens.sum())
    assert together.acceptance_rate == together.num_accepted_tokens / drafted
    assert together.width_histogram == {3: sum(map(len, rounds))}
    assert "Rounds by width" not in together.log_line()


def test_a_run_without_drafts_and_a_row_that_never_ran():
    plain = of(jspec.decode(**ASK).stats)
    assert plain.num_rounds == 3 * 24 and plain.num_drafts == plain.num_draft_tokens == 0
    assert plain.acceptance_rate is None and plain.num_accepted_tokens_per_pos == ()
    assert plain.acceptance_rate_per_pos == ()
    assert plain.mean_acceptance_length == plain.tokens_per_round == 1
    assert plain.width_histogram == {0: plain.num_rounds}
    assert plain.log_line(1.0) == "SpecDecoding metrics: no draft in 72 rounds"
    stats, _ = counted(stopping=jspec.Stopping(max_tokens=np.array([0, 24, 24])))
    idle = by_row(stats)[0]
    assert idle.num_rounds == idle.num_drafts == idle.num_accepted_tokens == 0
    assert idle.tokens_per_round == 0 and idle.acceptance_rate is None
    assert of(stats).num_rounds == sum(row.num_rounds for row in by_row(stats)[1:])
    assert Metrics().as_dict()["acceptance_histogram"] == []


def test_the_line_is_vllms():
    run = Metrics((4, 2, 3, 1, 0), num_drafts=8, num_draft_tokens=32)
    found = VLLM.fullmatch(run.log_line(seconds=4.0))
    assert found is not None
    length, accepted, drafted, tokens, nodes, per_pos, rate = found.groups()
    assert (tokens, nodes, rate) == ("11", "32", "34.4")
    assert float(length) == pytest.approx(1 + 11 / 8, abs=0.005)
    assert (accepted, drafted) == ("2.75", "8.00")
    assert per_pos == "0.750, 0.500, 0.125"  # and not the 0.000 of the last position
    assert "throughput" not in run.log_line()
    assert "0.000, Avg" in Metrics((3,), 3, 9).log_line()


def test_trees_and_batches_of_unequal_depth_add_up():
    one = Metrics((1, 1), 2, 6, {3: 2})
    two = Metrics((0, 0, 4), 3, 40, {0: 1, 10: 3})
    both = one + two
    assert both.acceptance_histogram == (1, 1, 4) and both.num_accepted_tokens == 9
    assert both.width_histogram == {0: 1, 3: 2, 10: 3}
    assert both.as_dict()["width_histogram"] == {"0": 1, "3": 2, "10": 3}
    assert both.log_line().endswith("Rounds by width: 1 of 0, 2 of 3, 3 of 10")
    # A round without a draft yields one token, which the mean of the drafts does not see.
    assert both.tokens_per_round == 15 / 6 and both.mean_acceptance_length == 1 + 9 / 5


def test_rounds_by_width_and_drafts_come_from_the_statistics():
    stats = Stats(
        acceptance_histogram=jnp.array([[3, 1, 2], [0, 0, 0]]), num_draft_tokens=jnp.array([30, 0]),
        num_drafts=jnp.array([3, 0]), width_histogram=jnp.array([[2, 4], [0, 0]]), widths=(0, 10),
    )  # fmt: skip
    ran, idle = by_row(stats)
    assert ran.width_histogram == {0: 2, 10: 4}
    assert ran.num_drafts == 3, "a round may be granted nodes and have none to verify"
    assert idle.num_drafts == idle.num_rounds == 0 and idle.width_histogram == {0: 0, 10: 0}
    assert of(stats).width_histogram == {0: 2, 10: 4}


def test_statistics_are_asked_for():
    with pytest.raises(jspec.InputError, match="pass the stats of a result"):
        of({"histogram": [1]})
