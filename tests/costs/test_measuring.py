"""Measured curves: the right points, and no program that decoding would not compile."""

import numpy as np
import pytest
import tiny

import jspec
from jspec._validate.errors import InputError
from jspec.costs import measure, measuring
from jspec.testing import PrefixLM

MODEL = PrefixLM(context=None)
WIDTHS = (0, 2, 5)
DRAFTER, POLICY = jspec.PromptLookup(num_speculative_tokens=5), jspec.Adaptive(WIDTHS)


@pytest.mark.slow
def test_every_width_is_timed_and_nothing_more_is_compiled():
    model = tiny.Counted(tiny.model())
    params, told = tiny.params(model.inner), []
    ask = dict(batch_size=2, prompt_tokens=9, max_new_tokens=40)
    curve = measure(
        model, params, DRAFTER, policy=POLICY, repeats=2,
        progress=lambda *done: told.append(done), **ask,
    )  # fmt: skip
    points = [2 * (1 + width) for width in WIDTHS]
    assert curve.tokens[:3].tolist() == points
    seconds = np.asarray(curve.at(points))
    assert (seconds > 0).all() and (seconds < 100).all()
    assert told == [(done, 16) for done in range(1, 17)]
    assert 0 < curve.undrafted < 100
    programs = len(model.traces)
    result = jspec.decode(
        model, params, np.ones((2, 9), int), max_new_tokens=40, drafter=DRAFTER,
        policy=POLICY, policy_params=curve,
    )  # fmt: skip
    assert len(model.traces) == programs, "a call of these shapes is the program that was timed"
    assert int(result.stats.num_rounds.sum()) > 0
    # One prefill, and one loop with a forward pass for each width.
    assert len(model.traces) == 1 + len(WIDTHS)


@pytest.mark.parametrize(
    ("backoff_is_slow_for", "turns", "rest"),
    [
        (0, 5, 1.0),  # nothing is out of order
        (6, 7, 1.0),  # two more turns, and the seventh finds what it takes
        (99, 11, 2.0),  # it stays so: a back-off takes no longer than a draft
    ],
)
def test_implausible_times_are_measured_again(backoff_is_slow_for, turns, rest):
    true, asked = {(2, True): 1.0, (2, False): 2.0, (8, False): 5.0}, []

    def timed(curve, in_backoff, rounds):
        point = min((2, 8), key=lambda point: float(curve.at([point])[0]))
        asked.append((point, in_backoff))
        busy = in_backoff and asked.count((2, True)) <= backoff_is_slow_for
        return true[point, in_backoff] + (7.0 if busy else 0.0)

    curve = measuring._measure_in_turn((0, 3), 2, timed, 3, None)
    assert len(asked) == 3 * turns
    assert curve.at([2, 8]).tolist() == pytest.approx([2.0, 5.0])
    assert float(curve.undrafted) == pytest.approx(rest)


@pytest.mark.parametrize(("seconds", "turns"), [(0.1, 14), (1.0, 5), (100.0, 4)])
def test_a_slow_model_is_measured_fewer_times(monkeypatch, seconds, turns):
    clock, asked = [0.0], []
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])

    def timed(curve, in_backoff, rounds):
        asked.append(in_backoff)
        clock[0] += seconds
        return 1.0

    said = []
    curve = measuring._measure_in_turn((0, 3), 2, timed, 12, lambda *done: said.append(done))
    assert len(asked) == 3 * turns and said[-1] == (42, 42)
    assert curve.at([2, 8]).tolist() == [1.0, 1.0]


def test_refusals_of_measuring():
    for policy, options, said in (
        (jspec.FixedWidth(), {}, "which does not go by what rounds cost; pass jspec.Adaptive"),
        (POLICY, {"batch_size": 0}, "batch_size is 0; pass an integer of at least 1"),
        (POLICY, {"repeats": 0}, "repeats is 0; pass an integer"),
        (POLICY, {"prompt_tokens": 0}, "prompt_tokens is 0; pass an integer"),
        (POLICY, {"max_new_tokens": 1.5}, r"max_new_tokens is 1\.5; pass an integer"),
    ):
        with pytest.raises(InputError, match=said):
            measure(MODEL, MODEL.init(), DRAFTER, policy=policy, **options)
