"""`python -m benchmarks.rollouts`: its arguments."""

import pytest

import jspec
from benchmarks import rollouts


def test_steps_are_rising_numbers():
    assert rollouts._distances("16, 1,4,1") == [1, 4, 16]


def test_an_invalid_number_of_steps_is_refused_in_one_sentence():
    for steps in ("", "1,", "-1", "1.5", "many"):
        with pytest.raises(jspec.InputError, match=r"--steps is '.*'; pass numbers from 0 on"):
            rollouts._distances(steps)
