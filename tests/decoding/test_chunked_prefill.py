"""Chunked prompts, continued texts and copied rows give the tokens of one call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tiny
from contract.methods import DRAFTERS
from quick import only

import jspec
from jspec.arrays import memory_rows as rows
from jspec.protocols import Drafting
from jspec.round import request
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=tiny.VOCAB, context=64)
PARAMS = MODEL.init()
LIMIT = 10
LENGTHS = np.array([21, 1, 14, 9])
PROMPTS = np.resize(np.random.default_rng(0).integers(tiny.VOCAB, size=(4, 5)), (4, 21))
ASK = dict(max_new_tokens=LIMIT, sampling=jspec.Sampling(jnp.array([0.0, 0.9, 0.9, 0.0])), key=5)
KINDS = (
    "autoregressive", "block", "eagle2", "lookahead", "lyanna", "mixture",
    "speculative_decoding", "spine", "suffix",
)  # fmt: skip
"""One of each kind of memory: the contract reads the prompts of all drafters in pieces."""


def run(state, drafter, params, model=(MODEL, PARAMS)):
    while not state.done.all():
        state = jspec.step(*model, state, drafter=drafter, drafter_params=params)
    return state


def same(state, result):
    np.testing.assert_array_equal(state.tokens[:, :LIMIT], result.tokens)
    np.testing.assert_array_equal(state.status, result.status)


def of(name):
    drafter, params = DRAFTERS.get(name, (jspec.Autoregressive(), None))
    return dict(drafter=drafter, drafter_params=params)


@pytest.mark.parametrize("name", only(["prompt_lookup", *KINDS], "prompt_lookup"))
def test_pieces_and_later_parts_change_no_token(name, monkeypatch):
    how = of(name)
    plain = jspec.decode(MODEL, PARAMS, PROMPTS, LENGTHS, **ASK)
    monkeypatch.setattr(request, "chunk_of", lambda batch, capacity: 4)
    first = np.array([6, 1, 10, 9])
    rest = np.stack([np.roll(row, -n) for row, n in zip(PROMPTS, first, strict=True)])
    state = jspec.prefill(MODEL, PARAMS, PROMPTS, LENGTHS, **ASK, **how)
    same(run(state, *how.values()), plain)
    state = jspec.prefill(MODEL, PARAMS, PROMPTS, first, capacity=64, **ASK, **how)
    state = jspec.prefill(MODEL, PARAMS, rest, LENGTHS - first, earlier=state, **ASK, **how)
    same(run(state, *how.values()), plain)
    # What was written is part of the text that goes on.
    ended = np.asarray(plain.lengths)
    texts = np.zeros((4, 40), int)
    for row, (length, end) in enumerate(zip(LENGTHS, ended, strict=True)):
        text = [*PROMPTS[row, :length], *plain.tokens[row, :end], 3, 1, 4][: length + end + row]
        texts[row, : len(text)] = text
    state = jspec.prefill(MODEL, PARAMS, PROMPTS, LENGTHS, capacity=64, **ASK, **how)
    state = run(state, *how.values())
    more = np.tile([3, 1, 4], (4, 1))
    state = jspec.prefill(MODEL, PARAMS, more, np.arange(4), earlier=state, **ASK, **how)
    total = LENGTHS + ended + np.arange(4)
    same(run(state, *how.values()), jspec.decode(MODEL, PARAMS, texts, total, **ASK))


@pytest.mark.slow
def test_memories_after_chunks_equal_memories_after_one_piece(monkeypatch):
    model = tiny.model()
    target = model, tiny.params(model)
    for name in ("speculative_decoding", "eagle"):
        found = []
        for size in (64, 4):
            monkeypatch.setattr(request, "chunk_of", lambda batch, capacity, size=size: size)
            state = jspec.prefill(*target, PROMPTS, LENGTHS, max_new_tokens=LIMIT, **of(name))
            found.append(jax.device_get(state.drafter_state))
        at_once, in_pieces = found
        np.testing.assert_array_equal(at_once.cache.lengths, in_pieces.cache.lengths)
        live = np.arange(at_once.cache.capacity) < at_once.cache.lengths[:, None]
        for a, b in zip(at_once.cache.keys, in_pieces.cache.keys, strict=True):
            np.testing.assert_allclose(
                *(np.where(live[:, None, :, None], x, 0) for x in (a, b)), atol=1e-5
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["suffix", "lookahead", "eagle"])
def test_copies_of_a_row_are_rows_of_a_batch_of_equal_prompts(name):
    how = of(name)
    ask = ASK | dict(sampling=jspec.Sampling(0.9))
    wanted = jspec.decode(MODEL, PARAMS, PROMPTS[[0, 0, 2]], LENGTHS[[0, 0, 2]], **ask)
    state = jspec.prefill(MODEL, PARAMS, PROMPTS, LENGTHS, **ask, **how)
    forked = jspec.fork(state, [0, 0, 2], drafter=how["drafter"], key=5)
    same(run(forked, *how.values()), wanted)
    same(run(state, *how.values()), jspec.decode(MODEL, PARAMS, PROMPTS, LENGTHS, **ask))
    assert (wanted.tokens[0] != wanted.tokens[1]).any()
    # A beginning that all prompts share: read once, then copied.
    begun = jspec.prefill(MODEL, PARAMS, PROMPTS[:1], [5], capacity=64, **ask, **how)
    begun = jspec.fork(begun, [0, 0, 0], drafter=how["drafter"], key=5)
    rest = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    state = jspec.prefill(MODEL, PARAMS, rest, [3, 1, 2], earlier=begun, **ask, **how)
    whole = np.concatenate([np.tile(PROMPTS[:1, :5], (3, 1)), rest], axis=1)
    same(run(state, *how.values()), jspec.decode(MODEL, PARAMS, whole, [8, 6, 7], **ask))


def test_copies_of_a_row_are_under_the_same_control():
    """Penalties, grammars, stops and log-probabilities of each row go along."""
    letters = [bytes([97 + token]) for token in range(22)] + [None]
    bound = jspec.grammar.choices(["abab", "cd"], letters)
    stop = jspec.stop_strings(["ef"], letters)
    places = [2, 0, 0]

    def ask(rows):
        return dict(max_new_tokens=ASK["max_new_tokens"], request=[
            jspec.Request(
                eos=22, stop_token_ids=[7], stop=[None, None, stop, None][row], temperature=0.9,
                seed=5, row_id=place, repetition_penalty=[1.0, 1.3, 2.0, 1.0][row],
                grammar=[bound, None, None, None][row], logprobs=2,
            )
            for place, row in enumerate(rows)
        ])  # fmt: skip

    wanted = jspec.decode(MODEL, PARAMS, PROMPTS[places], LENGTHS[places], **ask(places))
    state = jspec.prefill(MODEL, PARAMS, PROMPTS, LENGTHS, **ask([0, 1, 2, 3]))
    state = run(jspec.fork(state, places, key=5), *of("autoregressive").values())
    same(state, wanted)
    recorded = jax.tree.map(lambda leaf: leaf[:, :LIMIT], state.logprobs)
    for ours, theirs in zip(*map(jax.tree.leaves, (recorded, wanted.logprobs)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    without = jspec.prefill(MODEL, PARAMS, PROMPTS[:3], max_new_tokens=LIMIT)
    with pytest.raises(jspec.InputError, match="processors came with an earlier state that had no"):
        jspec.prefill(MODEL, PARAMS, PROMPTS[:3], earlier=without, **ask(places))


SPELLED = [*(bytes([97 + token]) * (1 + token % 3) for token in range(tiny.VOCAB))]
PENALTIES = dict(
    processors=[jspec.processors.repetition_penalty(1.5), jspec.processors.presence_penalty(0.5)]
)


def stopped(name):
    """Rows that end by a stop string, one amid a token, and by their limit."""
    ask = ASK | PENALTIES
    free = jspec.decode(MODEL, PARAMS, PROMPTS, LENGTHS, **ask)
    texts = [[SPELLED[token] for token in row] for row in free.tokens.tolist()]
    part = next(n for n in range(3, LIMIT) if len(texts[3][n]) > 1)
    strings = [b"".join(texts[0][4:6]), b"".join(texts[1][:2]), None, texts[3][part][1:]]
    strings[3] += b"".join(texts[3][part + 1 : part + 2])
    stop = [one and jspec.stop_strings(one.decode(), SPELLED) for one in strings]
    asks = [
        jspec.Request(
            temperature=t, seed=5, row_id=row, stop=stop[row], repetition_penalty=1.5,
            presence_penalty=0.5,
        )
        for row, t in enumerate(ASK["sampling"].temperature.tolist())
    ]  # fmt: skip
    state = jspec.prefill(
        MODEL, PARAMS, PROMPTS, LENGTHS, request=asks, max_new_tokens=LIMIT, capacity=64, **of(name)
    )
    state = run(state, *of(name).values())
    assert [jspec.Status(status).name for status in state.status.tolist()] == [
        "STOP", "STOP", "LIMIT", "STOP",
    ]  # fmt: skip
    assert state.lengths[1] == 2
    return state


def gone_on(state, order, more):
    """The whole texts behind the rows of a state, and what comes after."""
    texts = np.zeros((4, 60), int)
    total = []
    for row, place in enumerate(order):
        own = [
            *PROMPTS[place, : LENGTHS[place]],
            *state.tokens[place, : state.lengths[place]].tolist(),
        ]
        own += more[row, :row].tolist()
        texts[row, : len(own)] = own
        total.append(len(own))
    return texts, np.array(total)


# One of each kind of memory.
@pytest.mark.parametrize("name", only(KINDS, "autoregressive"))
def test_a_turn_goes_on_behind_a_stop_string(name):
    """Cache, penalties and the drafter's memory hold its tokens."""
    ask, more = ASK | PENALTIES, np.tile([3, 1, 4], (4, 1))
    for order in ([0, 1, 2, 3], [3, 0, 1, 1]):
        state = stopped(name)
        texts, total = gone_on(state, order, more)
        if order != [0, 1, 2, 3]:
            state = jspec.fork(state, order, drafter=of(name)["drafter"], key=5)
        state = jspec.prefill(MODEL, PARAMS, more, np.arange(4), earlier=state, **ask, **of(name))
        np.testing.assert_array_equal(state.positions + 1, total)
        same(run(state, *of(name).values()), jspec.decode(MODEL, PARAMS, texts, total, **ask))


def test_ten_turns_of_a_conversation_are_three_programs():
    counted, params = tiny.Counted(PrefixLM(context=256)), PARAMS
    state = None
    for turn in range(10):
        prompt = np.full((1, 5 + turn), turn)
        begin = dict(capacity=250) if state is None else dict(earlier=state)
        state = jspec.prefill(
            counted,
            params,
            prompt,
            max_new_tokens=9,
            stopping=jspec.Stopping(max_tokens=[turn]),
            **begin,
        )
        while not state.done.all():
            state = jspec.step(counted, params, state)
    assert len(counted.traces) <= 3, counted.traces


def test_a_prompt_holds_no_second_cache_and_no_scores_of_all_its_pairs():
    model = tiny.model(hidden_size=32, head_dim=32, context=1 << 20)
    params, capacity = tiny.params(model), 20_000
    call = request.prepare(model, np.ones((1, 19_000), int), None, 9, capacity=capacity)
    drafter = jspec.Autoregressive()
    program = jspec.decoding._prefill.lower(
        *(
            model,
            params,
            call.arrays,
            model.init_memory(1, capacity),
            call.arrays.prompt_lengths,
            ((), ()),
            Drafting(drafter, None, jspec.FixedWidth()),
        ),
        *(call.size, call.capacity, call.chunk),
    ).compile()
    cache = sum(leaf.nbytes for leaf in jax.tree.leaves(model.init_memory(1, capacity)))
    assert cache > 10e6
    assert program.memory_analysis().temp_size_in_bytes < cache / 4


def earlier(**changes):
    ask = dict(model=MODEL, params=PARAMS, prompt=PROMPTS, prompt_lengths=LENGTHS, max_new_tokens=4)
    return jspec.prefill(**(ask | changes))


def given_away():
    state = earlier()
    earlier(earlier=state)
    return state


def test_a_state_that_does_not_fit_is_one_sentence():
    cases = [
        (lambda: dict(earlier=7), "earlier is a int; pass the jspec.State"),
        (lambda: dict(earlier=earlier(), prompt=[[1]]), "state has 4 rows and the prompt 1"),
        (lambda: dict(earlier=earlier(), capacity=32), r"capacity is 32 and the earlier .* has 64"),
        (lambda: dict(earlier=earlier(model=tiny.model(), params=tiny.params(tiny.model()))),
         "memory is not one of this PrefixLM"),
        (lambda: dict(earlier=earlier(drafter=jspec.PromptLookup())),
         "memory of another drafter than this Autoregressive"),
        (lambda: dict(earlier=given_away()), "the state was given away to a call before"),
        (lambda: dict(earlier=earlier(), drafter_state=()), "drafter_state came with an earlier"),
        (lambda: dict(earlier=earlier(capacity=32)), r"row 0 .* 42 .* holds 32 tokens per row; "),
        (lambda: dict(prompt=np.ones((4, 50), int), prompt_lengths=[44, 1, 1, 1])
         | dict(earlier=earlier()),
         "would hold 65 tokens, 44 of them new, and the model's context is 64; leave out"),
        (lambda: dict(capacity=20), "capacity is 20; pass an integer in 21 .. 64, what the"),
        (lambda: dict(capacity=65), "capacity is 65; pass an integer in 21 .. 64"),
    ]  # fmt: skip
    refusals.check(cases, lambda change: earlier(**change()))


def test_copies_that_cannot_be_are_refused():
    cases = [
        (([4], {}), r"rows\[0\] is 4, outside 0 .. 3: the rows of the state"),
        (([[1]], {}), r"rows has shape \(1, 1\)"),
        (([1], dict(drafter=jspec.PromptLookup())), "of another drafter than this PromptLookup"),
    ]
    refusals.check(cases, lambda given: jspec.fork(earlier(), given[0], **given[1]))
    with pytest.raises(jspec.InputError, match="are sampled and key is None"):
        jspec.fork(earlier(sampling=jspec.Sampling(), key=1), [0, 0])
    with pytest.raises(jspec.InputError, match=r"Flat.init .* \(4,\) for 2 rows and \(6,\) for 3"):
        rows.row_axes("Flat", lambda batch: jnp.zeros(2 * batch))
