"""Transfers between host and device are explicit, and device arrays compile nothing."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=9)
ONE = jax.devices()[0]
PARAMS = jax.device_put(MODEL.init(), ONE)


def test_arrays_on_the_device_are_decoded_under_a_guard_and_streamed():
    there = jax.device_put(
        dict(
            prompt=np.array([[1, 2, 3], [2, 4, 0]], np.int8), prompt_lengths=np.array([3, 2]),
            row_ids=np.array([7, 5]), stopping=jspec.Stopping(min_tokens=2, eos=np.array([8])),
            key=jax.random.key(2),
            sampling=jspec.sampling.by_row(jspec.Sampling(0.7), 2),
        ),
        ONE,
    )  # fmt: skip
    on = dict(
        max_new_tokens=4, drafter=jspec.Suffix(2, capacity=16, max_match=2),
    )  # fmt: skip
    want = jspec.decode(MODEL, PARAMS, **jax.device_get(there | dict(key=2)), **on)
    with jax.transfer_guard("disallow"):
        got = jspec.decode(MODEL, PARAMS, **there, **on)
        chunks = list(jspec.stream(MODEL, PARAMS, **there | dict(key=2), **on))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert [token for chunk in chunks for token in chunk.tokens[0]] == (
        want.tokens[0, : want.lengths[0]].tolist()
    )


def test_an_engine_that_was_pickled_serves_under_a_guard():
    engine = jspec.Engine(MODEL, 2, 16, room=jspec.Room(min_tokens=True))
    there = pickle.loads(pickle.dumps(engine))
    state, four = engine.init(PARAMS), jspec.Request(max_tokens=4)
    with jax.transfer_guard("disallow"):
        prompt = jax.device_put(np.array([1, 2, 3]), ONE)
        state = there.insert(state, 1, there.prefill(PARAMS, prompt, four))
        state, _ = there.generate(PARAMS, state, rounds=4)
        taken = there.take(state, 1)
        state = there.free(state, 1)
    want = jspec.decode(MODEL, PARAMS, [[1, 2, 3]], max_new_tokens=4)
    assert taken.tokens[0, :4].tolist() == want.tokens[0].tolist()


def test_prompts_on_the_device_compile_nothing_at_another_width():
    def call(width, **more):
        lengths = jnp.full(2, width - 1, jnp.uint8)
        prompt = jax.device_put(np.ones((2, width), np.int32), more.pop("place", None))
        jspec.decode(MODEL, PARAMS, prompt, lengths, max_new_tokens=4, **more)

    call(3)
    with jspec.no_recompile():
        for width in (2, 5, 11):
            call(width)
    call(3, place=ONE)
    with jspec.no_recompile():
        call(7, place=ONE)
