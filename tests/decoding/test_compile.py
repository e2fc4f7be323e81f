"""Compilation: how often, and its memory."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from compiling import shifted_in_place

import jspec
from jspec import decoding
from jspec.protocols import Drafting
from jspec.round.request import bucket, prepare


def test_ten_calls_of_a_bucket_trace_once():
    model = tiny.Counted(tiny.model())
    params = tiny.params(model.inner)
    rng = np.random.default_rng(0)
    state = None
    for call in range(10):
        # Rebuilt each time: a drafter is its values.
        drafter = jspec.TokenRecycling(tiny.VOCAB, jspec.tree.branching([2, 1]))
        result = jspec.decode(
            model,
            params,
            rng.integers(0, tiny.VOCAB, (2, 17 + call)),
            rng.integers(1, 17, 2),
            drafter=drafter,
            drafter_state=state,
            max_new_tokens=20 - call // 3,
            stopping=jspec.Stopping(max_tokens=rng.integers(0, 17, 2), eos=[call]),
            sampling=jspec.Sampling(temperature=0.1 * call, top_p=1 - 0.05 * call, top_k=call),
            key=call,
            row_ids=rng.integers(0, 99, 2),
        )
        state = result.drafter_state
    # One prefill and one loop.
    assert len(model.traces) == 2, model.traces


def test_an_unread_key_of_a_greedy_call_compiles_nothing():
    model = tiny.Counted(jspec.testing.PrefixLM())
    for key in (None, 0, jax.random.key(1)):
        for _ in range(2):
            jspec.decode(
                *(model, model.inner.init(), [[1, 2, 3]]),
                drafter=jspec.PromptLookup(),
                key=key,
                max_new_tokens=3,
            )
    assert len(model.traces) == 2, model.traces


def test_buckets():
    assert [bucket(size) for size in (1, 128, 129, 300, 4096)] == [128, 128, 256, 512, 4096]


MODEL = tiny.model(hidden_size=32, head_dim=32, context=1 << 20)


def _lowered(drafter, weights, new_tokens, policy=jspec.FixedWidth(), costs=None):
    model, params = MODEL, tiny.params(MODEL)
    prompt = np.ones((2, 16), int)
    call = prepare(model, prompt, None, new_tokens)
    decides = dict(policy=policy, policy_params=costs)
    drafting = Drafting(drafter, weights, policy, costs)
    known = drafting.init(2, call.capacity)
    cache = model.init_memory(2, call.capacity)
    state = jax.eval_shape(
        lambda params, arrays, cache, known: decoding._prefill(
            *(model, params, arrays, cache, arrays.prompt_lengths, known, drafting),
            *(call.size, call.capacity, call.chunk),
        ),
        *(params, call.arrays, cache, known),
    )
    loop = decoding.decode_rounds.lower(model, params, state, drafting, 100)
    whole = jax.jit(
        lambda params, prompt: (
            jspec.decode(
                model,
                params,
                prompt,
                drafter=drafter,
                drafter_params=weights,
                **decides,
                max_new_tokens=new_tokens,
            ).tokens
        )
    ).lower(params, jnp.asarray(prompt))
    caches = state.memory, state.drafter_state if weights is not None else ()
    cache = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(caches))
    return cache, loop.compile(), whole.compile()


FLAT = jspec.CostCurve.of({1: 1.0})


@pytest.mark.parametrize(
    "kind",
    [
        "recycling",
        pytest.param("draft_model", marks=pytest.mark.slow),
        pytest.param("adaptive_recycling", marks=pytest.mark.slow),
        pytest.param("adaptive_draft_model", marks=pytest.mark.slow),
    ],
)
def test_there_is_no_second_cache(kind):
    """Nor does the choice of a width make one: branches write in place."""
    drafter, weights = {
        "recycling": (jspec.TokenRecycling(tiny.VOCAB, jspec.tree.branching([2, 1])), None),
        "draft_model": (jspec.CoupledTree(MODEL, 6, 3, 3), tiny.params(MODEL)),
    }[kind.removeprefix("adaptive_")]
    decides = ()
    if kind.startswith("adaptive"):
        decides = jspec.Adaptive((0, 2, 4)), FLAT
    cache, loop, whole = _lowered(drafter, weights, 40_000, *decides)
    assert cache > 20e6
    # The loop's cache is its donated argument; inside a caller's jit it is a temporary, once.
    assert loop.memory_analysis().temp_size_in_bytes < cache / 4
    assert whole.memory_analysis().temp_size_in_bytes < 1.25 * cache
    # Nothing may cross to the host inside the loop.
    text = loop.as_text()
    assert not any(word in text for word in ("infeed", "outfeed", "callback", "send("))
    assert not shifted_in_place(text)


@pytest.mark.slow
def test_an_adjacency_matrix_is_held_once():
    """Reads before it writes; an array that is read afterwards is copied whole by XLA."""
    loaded = jspec.models.load("jspec-800k")
    size = loaded.model.vocab_size
    drafter = jspec.Spine(size, 4)
    decides = dict(policy=jspec.Adaptive((0, 2)), policy_params=FLAT)
    state = jspec.prefill(loaded.model, loaded.params, [[5, 6]], drafter=drafter, **decides)
    drafting = Drafting(drafter, None, **decides)
    loop = decoding.decode_rounds.lower(loaded.model, loaded.params, state, drafting, 100).compile()
    assert not re.search(rf"= \w+\[1,{size},\d+\]\S* copy\(", loop.as_text())
