"""The programs that a plan lists are those that JAX then compiles, and no others."""

from collections import Counter
from contextlib import contextmanager

import jax
import numpy as np

import jspec
from jspec.planning.reachable import DECODE, ENGINE, reachable
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=17, context=200)
PARAMS = MODEL.init()
DRAFTER = jspec.PromptLookup(num_speculative_tokens=3)
OURS = {"_prefill", "decode_rounds", "insert", "_step", "copies", "free"}
"""The functions that jspec compiles; all else are operations of a few numbers."""


@contextmanager
def compilations():
    """The functions of jspec that are compiled meanwhile, each as often as it is."""
    found = Counter()

    def begins(event, value, **about):
        del value
        name = str(about.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
        if "backend_compile_duration" in event and name in OURS:
            found[name] += 1

    jax.monitoring.register_scalar_listener(begins)
    try:
        yield found
    finally:
        jax.monitoring.unregister_scalar_listener(begins)


def listed(call):
    return [one for one in reachable(2, 190, 20, MODEL.context) if one.call == call]


def test_decode_compiles_what_is_listed():
    ask = dict(drafter=DRAFTER, max_new_tokens=20)
    with compilations() as found:
        programs = jspec.warmup(MODEL, PARAMS, prompt_tokens=170, rows=2, **ask)
    assert list(programs) == [one.program for one in listed(DECODE) if one.function == "_prefill"]
    assert found == Counter(one.function for one in listed(DECODE))
    with jspec.no_recompile():
        for size in (1, 108, 109, 170):
            jspec.decode(MODEL, PARAMS, np.ones((2, size), int), **ask)


def serve(engine):
    state = engine.init(PARAMS)
    for prompt in ([1, 2, 3], list(range(17)) * 8):
        state = engine.insert(state, 1, engine.prefill(PARAMS, prompt, limits=4))
        state, _ = engine.generate(PARAMS, state)
    engine.prefill(PARAMS, [4], earlier=engine.take(state, 1))
    return engine.free(state, 1)


def test_an_engine_compiles_what_is_listed():
    engine = jspec.Engine(MODEL, num_slots=2, capacity=190, drafter=DRAFTER)
    with compilations() as found:
        serve(engine)
    assert found == Counter(one.function for one in listed(ENGINE))
    with jspec.no_recompile():
        serve(engine)
