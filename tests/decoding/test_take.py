"""A row that is taken is alone: what became of its neighbours' texts is not asked."""

import pytest

import jspec
from jspec.types import Status

MODEL = jspec.testing.RecurrentLM()
"""Its memory cannot be cut back to an earlier token."""
PARAMS = MODEL.init()
TOKENS = [bytes([97 + token]) for token in range(23)]


@pytest.mark.slow
def test_a_row_is_taken_though_a_stop_string_has_cut_another():
    room = jspec.Stopping(stop=jspec.grammar.StopCapacity(16, 16))
    engine = jspec.Engine(MODEL, num_slots=2, capacity=32, stopping=room)
    prompts = [1, 2, 3], [4, 5, 6]
    plain = jspec.decode(MODEL, PARAMS, prompts, max_new_tokens=8).tokens.tolist()
    # Of two tokens, the first of which is in the memory when the second completes the string.
    cut = jspec.stop_strings((TOKENS[plain[0][2]] + TOKENS[plain[0][3]]).decode(), TOKENS)
    state = engine.init(PARAMS)
    for slot, (prompt, stop, limit) in enumerate(zip(prompts, (cut, None), (8, 4), strict=True)):
        stopping = jspec.Stopping(max_tokens=limit, stop=stop)
        arrival = engine.prefill(PARAMS, prompt, stopping=stopping)
        state = engine.insert(state, slot, arrival)
    while not state.done.all():
        state, _ = engine.generate(PARAMS, state)
    assert state.status.tolist() == [Status.STOP, Status.LIMIT]
    with pytest.raises(jspec.InputError, match="a stop string has cut a row's text"):
        engine.take(state, 0)
    stopping, earlier = jspec.Stopping(max_tokens=4), engine.take(state, 1)
    after = engine.prefill(PARAMS, [7], stopping=stopping, earlier=earlier)
    text = [[*prompts[1], *plain[1][:4], 7]]
    whole = jspec.decode(MODEL, PARAMS, text, max_new_tokens=4).tokens[0].tolist()
    while not after.done.all():
        after = jspec.step(MODEL, PARAMS, after)
    assert after.tokens[0, :4].tolist() == whole
