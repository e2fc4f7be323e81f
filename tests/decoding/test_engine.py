"""Rows that come and go: each has the tokens of `decode` alone, whatever happens around it."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import refusals

import jspec
from jspec import decoding as engines
from jspec import processors
from jspec.decoding import rows
from jspec.decoding.engine import _step
from jspec.processors import grammar
from jspec.testing.prefix_lm import PrefixLM
from jspec.types import Status

LETTERS = [bytes([97 + token]) for token in range(22)] + [None]
END, SLOTS, LIMIT = 22, 48, 16
MODEL = PrefixLM()
PARAMS = MODEL.init()
CAPACITY = grammar.Capacity(states=24, classes=24)
ROOM = jspec.Room(
    min_tokens=True, penalties=True, num_biases=4, grammar=CAPACITY, stop=CAPACITY, logprobs=2,
    processors=[processors.banned_tokens([], capacity=4)],
)  # fmt: skip
BOUND = jspec.grammar.choices(["abab", "cdc", "a"], LETTERS)
STOPS = [
    jspec.stop_strings(strings, LETTERS) for strings in (["e", "h", "o"], ["fg", "c", "t", "m"])
]
LOOKUP = jspec.PromptLookup(num_speculative_tokens=4)
COSTS = jspec.CostCurve.of({1: 0.02, 8: 0.021})
DRAFTERS = {
    "lookup": (LOOKUP, jspec.FixedWidth(), None),
    "adaptive": (
        jspec.merge(jspec.Suffix(num_speculative_tokens=6), jspec.JumpForward(2)),
        jspec.Adaptive((0, 3, 7)),
        COSTS,
    ),
}


def engine_of(drafter, policy=jspec.FixedWidth()):
    """Three rows with every kind of processor."""
    return jspec.Engine(
        MODEL, num_slots=3, capacity=SLOTS, drafter=drafter, policy=policy, room=ROOM
    )


@pytest.fixture(scope="module", params=["lookup", pytest.param("adaptive", marks=pytest.mark.slow)])
def engine(request):
    """(an engine, its policy's params)."""
    drafter, policy, costs = DRAFTERS[request.param]
    return engine_of(drafter, policy), costs


@pytest.fixture(scope="module")
def lookup():
    return engine_of(LOOKUP)


@pytest.fixture(scope="module")
def plain():
    return jspec.Engine(MODEL, num_slots=2, capacity=SLOTS)


def reads_logprobs(number):
    return number % 4 != 0


def requests(count, seed=0):
    """Returns (prompt, request) pairs with all kinds of settings side by side."""
    rng = np.random.default_rng(seed)
    asked = []
    for number in range(count):
        few = rng.integers(0, 22, size=4)
        asked.append((
            np.resize(few, int(rng.integers(1, 14))),
            jspec.Request(
                max_tokens=int(rng.integers(0 if number == 3 else 1, LIMIT)),
                min_tokens=int(rng.integers(3)),
                eos=END if number % 2 else [END, int(rng.integers(22))],
                stop_token_ids=[int(rng.integers(22))] if number % 4 == 1 else (),
                stop=STOPS[number % 2] if number % 3 != 2 else None,
                temperature=0.9 if number % 3 else 0.0,
                top_p=rng.uniform(0.5, 1) if number % 3 else 1.0,
                seed=number, row_id=int(rng.integers(1000)),
                repetition_penalty=float(rng.choice([1.0, 1.4])),
                logit_bias={int(few[0]): -1.5} if number % 5 == 2 else {},
                processors=[processors.banned_tokens([int(few[1])] if number % 5 == 3 else [])],
                grammar=BOUND if number % 3 == 1 else None,
                logprobs=2 if reads_logprobs(number) else None,
            ),
        ))  # fmt: skip
    return asked


def alone(asked):
    """All requests by `decode`, plainly, in one batch of rows that never come or go."""
    prompts, asks = zip(*asked, strict=True)
    return jspec.decode(MODEL, PARAMS, [*prompts], request=asks, max_new_tokens=LIMIT)


def read(engine, one, pieces=1):
    """A request, its prompt read in so many pieces."""
    (engine, costs), (prompt, request), state = engine, one, None
    for piece in np.array_split(prompt, min(pieces, len(prompt))):
        state = engine.prefill(PARAMS, piece, request, policy_params=costs, earlier=state)
    return state


def serve(engine, asked, rng, cancelled=()):
    """Serves all requests as they come: into whatever row is free, at random moments.

    Returns:
        The tokens of each request that was not given up, its status, and its log-probabilities.
    """
    pair, (engine, costs) = engine, engine
    state, waiting = engine.init(PARAMS, policy_params=costs), list(range(len(asked)))
    running, tokens, ended = {}, {}, {}
    while waiting or running:
        free = [row for row in range(engine.num_slots) if row not in running]
        while waiting and free and rng.random() < 0.8:
            row, number = free.pop(int(rng.integers(len(free)))), waiting.pop(0)
            state = engine.insert(state, row, read(pair, asked[number], pieces=1 + number % 3))
            running[row], tokens[number] = number, ([], [])
        state, output = engine.generate(
            PARAMS, state, policy_params=costs, rounds=2, until_one_ends=bool(waiting)
        )
        output = jax.device_get(output)
        for row, number in list(running.items()):
            new = slice(0, int(output.counts[row]))
            tokens[number][0].extend(output.tokens[row, new].tolist())
            tokens[number][1].extend(output.logprobs.token_logprobs[row, new].tolist())
            over = number in cancelled and len(tokens[number][0]) > 1
            if over or output.status[row] != Status.RUNNING:
                ended[number] = int(output.status[row]), int(output.stop_bytes[row])
                state = engine.free(state, row)
                del running[row]
    return tokens, ended


def to_the_end(engine, state):
    while not state.done.all():
        state, _ = engine.generate(PARAMS, state, rounds=2)
    return state


@pytest.mark.slow
def test_a_row_goes_on_behind_the_stop_string_that_ended_it():
    """Of a memory that cannot be cut."""
    model = jspec.testing.RecurrentLM()
    params = model.init()
    room = jspec.Room(stop=jspec.grammar.Capacity(16, 16))
    engine = jspec.Engine(model, num_slots=1, capacity=32, room=room)
    prompt = [1, 2, 3]
    plain = jspec.decode(model, params, [prompt], max_new_tokens=8).tokens[0].tolist()
    # Of two tokens, the first of which is in the memory when the second completes the string.
    stop = jspec.stop_strings((LETTERS[plain[2]] + LETTERS[plain[3]]).decode(), LETTERS)
    arrival = engine.prefill(params, prompt, jspec.Request(max_tokens=8, stop=stop))
    state = engine.insert(engine.init(params), 0, arrival)
    while not state.done.all():
        state, _ = engine.generate(params, state)
    assert state.status.tolist() == [Status.STOP]
    earlier = engine.take(state, 0)
    after = engine.prefill(params, [7], jspec.Request(max_tokens=4), earlier=earlier)
    whole = jspec.decode(model, params, [[*prompt, *plain[:4], 7]], max_new_tokens=4).tokens[0]
    while not after.done.all():
        after = jspec.step(model, params, after)
    assert after.tokens[0, :4].tolist() == whole.tolist()


def test_a_rows_draft_memory_ends_with_it(lookup):
    """The rounds are those of the text alone: looked up in it, and in no other row's."""
    prompt = np.resize([3, 1, 4], 11)
    other = lookup.prefill(PARAMS, np.resize([9, 8], 9), jspec.Request(max_tokens=20))
    state = lookup.insert(lookup.init(PARAMS), 0, other)
    state, _ = lookup.generate(PARAMS, state, rounds=2)
    arrival = lookup.prefill(PARAMS, prompt, jspec.Request(max_tokens=20))
    state = to_the_end(lookup, lookup.insert(state, 1, arrival))
    one = jspec.decode(MODEL, PARAMS, prompt[None], drafter=LOOKUP, max_new_tokens=20)
    assert (state.tokens[1, :20] == one.tokens[0]).all()
    assert (state.stats.acceptance_histogram[1] == one.stats.acceptance_histogram[0]).all()
    assert one.stats.num_accepted_tokens[0] > 0


@pytest.fixture(scope="module")
def asked():
    return requests(14)


@pytest.fixture(scope="module")
def wanted(asked):
    return alone(asked)


def equal(found, wanted, skipped=()):
    tokens, ended = found
    kinds = set()
    for number in range(len(wanted.lengths)):
        if number in skipped:
            continue
        there = slice(0, int(wanted.lengths[number]))
        assert tokens[number][0] == wanted.tokens[number, there].tolist(), number
        assert ended[number] == (wanted.status[number], wanted.stop_bytes[number]), number
        if reads_logprobs(number):
            known = wanted.logprobs.token_logprobs[number, there]
            np.testing.assert_allclose(tokens[number][1], known, rtol=1e-5, atol=1e-6)
        kinds.add(int(wanted.status[number]))
    return kinds


def test_a_request_has_its_own_tokens_whenever_it_comes_and_whatever_it_asks_for(
    engine, asked, wanted
):
    """Prompts in pieces, penalties, grammars, stops, log-probabilities; some are given up."""
    given_up, known = {2, 5}, None
    for seed in range(2):
        rng = np.random.default_rng(seed)
        kinds = equal(serve(engine, asked, rng, given_up), wanted, given_up)
        assert {Status.EOS, Status.STOP, Status.LIMIT} <= kinds
        programs = engines._prefill._cache_size(), _step._cache_size()
        programs += rows.insert._cache_size(), rows.free._cache_size()
        assert known in (None, programs), "another request compiled something"
        known = programs


def test_the_comparison_sees_a_row_that_is_another(engine, asked, wanted):
    prompt, request = asked[5]
    other = replace(request, row_id=request.row_id + 1)
    changed = [*asked[:5], (prompt, other), *asked[6:]]
    with pytest.raises(AssertionError):
        equal(serve(engine, changed, np.random.default_rng(0)), wanted)


def test_a_step_comes_back_when_a_row_ends_if_someone_waits(plain):
    for waiting, ran in ((False, 9), (True, 3)):
        state = plain.init(PARAMS)
        for row, limit in enumerate((3, 9)):
            state = plain.insert(
                state, row, plain.prefill(PARAMS, [1, 2], jspec.Request(max_tokens=limit))
            )
        state, output = plain.generate(PARAMS, state, rounds=20, until_one_ends=waiting)
        assert output.counts.tolist() == [3, ran]
        if waiting:  # and goes on, though that row is still there
            state, output = plain.generate(PARAMS, state, rounds=20, until_one_ends=waiting)
            assert output.counts.tolist() == [0, 6]
    assert plain.generate(PARAMS, plain.free(state, 0), rounds=20)[1].status.tolist() == [
        Status.FREE, Status.LIMIT,
    ]  # fmt: skip


def test_nothing_compiles_after_a_warmup():
    """Of a model that no other test has."""
    model = PrefixLM(vocab_size=19)
    params, policy = model.init(), jspec.FixedWidth(2)
    engine = jspec.Engine(model, num_slots=2, capacity=24, drafter=LOOKUP, policy=policy)
    engine.warmup(params, rounds=2)
    with jspec.no_recompile():
        state = engine.init(params)
        drawn = jspec.Request(temperature=0.8, top_k=3, seed=1)
        for number, request in enumerate((jspec.Request(), drawn)):
            arrival = engine.prefill(params, [1, 2, 3, number], request)
            again = jspec.fork(arrival, [0], drafter=LOOKUP, policy=policy, key=5, row_ids=[7])
            state = engine.insert(state, number, again)
        state, output = engine.generate(params, state, rounds=2)
        longer = engine.prefill(params, [4, 5], earlier=engine.take(state, 1))
        state = engine.insert(engine.free(engine.free(state, 1), 0), 0, longer)
        state, output = engine.generate(params, state, rounds=2, until_one_ends=True)
        with pytest.raises(jspec.RecompileError):
            engine.generate(params, state, rounds=3)
    assert jax.device_get(output.counts).tolist()[1] == 0


def test_memory_is_known_before_it_is_taken(engine):
    engine, costs = engine
    said = engine.memory(PARAMS, policy_params=costs)
    state = engine.init(PARAMS, policy_params=costs)
    taken = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert sum(said.values()) == taken
    assert said["memory"] == sum(leaf.nbytes for leaf in jax.tree.leaves(state.memory))


WRONG = [
    (lambda e, s: e.insert(s, 3, e.prefill(PARAMS, [1])), "slot is 3; pass an integer"),
    (lambda e, s: e.insert(s, 0, [1, 2]), "arrival is not a state of one row"),
    (
        lambda e, s: e.insert(s, 0, jspec.prefill(MODEL, PARAMS, [[1]], max_new_tokens=9)),
        "the arrival holds other things than the engine's rows",
    ),
    (
        lambda e, s: e.insert(s, 0, jspec.Engine(MODEL, 2, 40).prefill(PARAMS, [1])),
        "the arrival's row holds 40 tokens and the engine's hold 48",
    ),
    (lambda e, s: e.prefill(PARAMS, [1] * 49), "the prompt has 49 tokens and a row"),
    (lambda e, s: e.prefill(PARAMS, []), "the prompt is empty; pass at least one"),
    (lambda e, s: e.prefill(PARAMS, [[1], [2, 3]]), "prompt is .*lists of equal length"),
    (lambda e, s: e.prefill(PARAMS, [2**32 + 1]), r"is token 4294967297, outside"),
    (lambda e, s: e.prefill(PARAMS, [1], jspec.Request(eos=2**32 + 3)), "eos: a token is 429"),
    (lambda e, s: e.prefill(PARAMS, [1], jspec.Request(eos=22 + 1)), "eos holds"),
    (lambda e, s: e.prefill(PARAMS, [[1], [2]]), r"prompt has shape \(2, 1\)"),
    (
        lambda e, s: e.prefill(PARAMS, [1], jspec.Request(eos=list(range(9)))),
        r"eos has 9 tokens and the engine room for 8; .*room=jspec.Room\(num_end_tokens=9\)",
    ),
    (
        lambda e, s: e.prefill(PARAMS, [1], jspec.Request(max_tokens=49)),
        "max_tokens is 49; pass an integer in 0 .. 48",
    ),
    (lambda e, s: e.prefill(PARAMS, [1], dict(eos=END)), "request is .*; pass a jspec.Request"),
    (lambda e, s: e.generate(PARAMS, s, rounds=0), "rounds is 0"),
    *(
        (lambda e, s, call=call: call(e, dead(e)), "the state was given away to a call before")
        for call in (
            lambda e, old: e.insert(old, 0, e.prefill(PARAMS, [1])),
            lambda e, old: e.insert(e.init(PARAMS), 0, dead(e, 0)),
            lambda e, old: e.free(old, 0),
            lambda e, old: e.take(old, 0),
            lambda e, old: jspec.fork(old, [0]),
        )
    ),
    (lambda e, s: e.free(s.tokens, 0), "state is .*; pass what jspec.prefill or jspec.step"),
    (lambda e, s: e.init(None), "params is None"),
    *(
        (
            lambda e, s, name=name, value=value: e.prefill(
                PARAMS, [1], jspec.Request(**{name: value})
            ),
            rf"the request has {name} and the engine no room for it; .*jspec.Room\({place}=",
        )
        for name, value, place in (
            ("min_tokens", 2, "min_tokens"),
            ("repetition_penalty", 1.1, "penalties"),
            ("frequency_penalty", 0.1, "penalties"),
            ("presence_penalty", 0.1, "penalties"),
            ("logit_bias", {1: 2.0}, "num_biases"),
            ("grammar", BOUND, "grammar"),
            ("logprobs", 0, "logprobs"),
            ("stop", STOPS[0], "stop"),
            ("processors", [processors.banned_tokens([1])], "processors"),
        )
    ),
]


def dead(engine, row=None):
    """A state that a call took, of all rows or of an arrival."""
    state = engine.init(PARAMS) if row is None else engine.prefill(PARAMS, [1])
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    return state


def test_misfits_are_refused_in_one_sentence(plain):
    refusals.check(WRONG, lambda call: call(plain, plain.init(PARAMS)))


def test_requests_beyond_the_reserved_room_are_refused(lookup):
    many = jspec.grammar.choices(["abcdefghijklmnopqrstu" * 2], LETTERS)
    refusals.check(
        [
            (dict(grammar=many, eos=END), r"has 4\d states and a row has room for 24"),
            (dict(logit_bias=dict.fromkeys(range(5), 1.0)), "logit_bias has 5 tokens .* for 4"),
            (dict(logprobs=3), "logprobs has 3 tokens and the engine room for 2"),
            (
                dict(logprobs=1, logprobs_mode="processed_logprobs"),
                "the engine's is 'raw_logprobs'",
            ),
            (
                dict(processors=[processors.banned_tokens([1, 2, 3, 4, 5])]),
                r"has shape .*8.* has room for .*4",
            ),
            (
                dict(processors=[processors.banned_sequences([[1]])]),
                r"has the processors \['ban_after'\] and the engine's room \['ban'\]",
            ),
            (dict(stop="a"), "stop is 'a'; pass jspec.stop_strings"),
        ],
        lambda fields: lookup.prefill(PARAMS, [1], jspec.Request(**fields)),
    )
    with pytest.raises(jspec.InputError, match="capacity is 49"):
        jspec.Engine(MODEL, 2, 49)
    with pytest.raises(jspec.InputError, match="drafter is <class"):
        jspec.Engine(MODEL, 2, 9, jspec.PromptLookup)
    with pytest.raises(jspec.InputError, match="num_slots is 0"):
        jspec.Engine(MODEL, 0, 9)
    with pytest.raises(jspec.InputError, match="room is 5; pass a"):
        jspec.Engine(MODEL, 2, 9, room=5)
