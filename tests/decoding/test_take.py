"""A row that is taken: its text goes on, whatever ended it, also of a memory that cannot be cut."""

import pytest

import jspec
from jspec.types import Status

MODEL = jspec.testing.RecurrentLM()
PARAMS = MODEL.init()
TOKENS = [bytes([97 + token]) for token in range(23)]


@pytest.mark.slow
def test_a_row_goes_on_behind_the_stop_string_that_ended_it():
    room = jspec.Room(stop=jspec.grammar.Capacity(16, 16))
    engine = jspec.Engine(MODEL, num_slots=1, capacity=32, room=room)
    prompt = [1, 2, 3]
    plain = jspec.decode(MODEL, PARAMS, [prompt], max_new_tokens=8).tokens[0].tolist()
    # Of two tokens, the first of which is in the memory when the second completes the string.
    stop = jspec.stop_strings((TOKENS[plain[2]] + TOKENS[plain[3]]).decode(), TOKENS)
    arrival = engine.prefill(PARAMS, prompt, jspec.Request(max_tokens=8, stop=stop))
    state = engine.insert(engine.init(PARAMS), 0, arrival)
    while not state.done.all():
        state, _ = engine.generate(PARAMS, state)
    assert state.status.tolist() == [Status.STOP]
    earlier = engine.take(state, 0)
    after = engine.prefill(PARAMS, [7], jspec.Request(max_tokens=4), earlier=earlier)
    whole = jspec.decode(MODEL, PARAMS, [[*prompt, *plain[:4], 7]], max_new_tokens=4).tokens[0]
    while not after.done.all():
        after = jspec.step(MODEL, PARAMS, after)
    assert after.tokens[0, :4].tolist() == whole.tolist()
