"""Warming up covers what is run, and reports what it does not cover."""

import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=19, context=200)
PARAMS = MODEL.init()
DRAFTER = jspec.PromptLookup(num_speculative_tokens=2)
ASK = dict(
    drafter=DRAFTER,
    max_new_tokens=20,
    sampling=jspec.Sampling(temperature=0.7),
    key=0,
    stopping=jspec.Stopping(eos=3),
)


@pytest.fixture(autouse=True)
def reached():
    # For each test: programs may have been dropped between two of them.
    return jspec.warmup(MODEL, PARAMS, prompt_tokens=150, rows=2, **ASK)


def test_every_call_that_was_warmed_up_runs(reached):
    assert reached == (jspec.Program(2, 128), jspec.Program(2, 200))
    stopping = jspec.Stopping(max_tokens=[20, 4], eos=[5])
    sampling = jspec.Sampling(temperature=[0.0, 1.3])
    other = ASK | dict(sampling=sampling, key=9, stopping=stopping)
    with jspec.no_recompile():
        for size in (1, 90, 108, 109, 150):
            result = jspec.decode(MODEL, PARAMS, np.ones((2, size), int), [size, 1], **other)
        chunks = list(jspec.stream(MODEL, PARAMS, [[1, 2, 1], [2, 2, 2]], **ASK))
        assert jspec.metrics.of(result.stats).num_rounds > 0
    assert sum(len(tokens) for chunk in chunks for tokens in chunk.tokens) > 2


def test_programs_not_warmed_up_are_an_error_that_names_them(caplog):
    with caplog.at_level(logging.INFO), jspec.no_recompile():
        with pytest.raises(
            jspec.RecompileError,
            match=r"jit\(_empty\) would be compiled for a call of 3 rows of 128 tokens",
        ):
            jspec.decode(MODEL, PARAMS, np.ones((3, 4), int), **ASK)
        with pytest.raises(
            jspec.RecompileError, match=r"sextuple\W.* from arrays of float32\[7\] inside"
        ):
            sextuple(np.ones(7, np.float32))
        jspec.decode(MODEL, PARAMS, np.ones((2, 4), int), **ASK)
    assert not caplog.records, "JAX says no more than before"
    # Behind the context, and after an error inside it, everything may be compiled again.
    assert sextuple(np.ones(7, np.float32))[0] == 6


@jax.jit
def sextuple(x):
    return 6 * x


def test_another_thread_may_compile():
    found = []
    work = threading.Thread(target=lambda: found.append(jnp.arange(41) % 7))
    with jspec.no_recompile():
        work.start()
        work.join()
    assert found[0][8] == 1


def test_misfits_are_refused_in_one_sentence():
    for changes, said in (
        (dict(prompt_tokens=0), "prompt_tokens is 0"),
        (dict(prompt_tokens=201), r"prompt_tokens is 201; pass an integer in 1 \.\. 200"),
        (dict(rows=()), "rows is empty"),
        (dict(rows=[2, 0]), "rows is 0"),
        (dict(rows=2.5), "rows is 2.5"),
        (dict(prompt_lengths=[1]), "prompt_lengths came to warmup"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            jspec.warmup(MODEL, PARAMS, **(dict(prompt_tokens=5) | ASK | changes))
