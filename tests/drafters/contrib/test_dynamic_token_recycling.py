import jax
import numpy as np
import pytest
import rounds
import tiny
from oracle import dynamic_token_recycling as oracle

import jspec
from jspec import sampling as samplings
from jspec.drafters.contrib import ngrams as files
from jspec.drafters.contrib.dynamic_token_recycling import DynamicTokenRecycling

K = 3


def held(state):
    """The matrix as the oracle has it."""
    tokens, probs = np.asarray(state.tokens[0]), np.asarray(state.probs[0], np.float64)
    return {
        token: list(zip(tokens[token].tolist(), probs[token].tolist(), strict=True))
        for token in range(tiny.VOCAB)
        if probs[token].any()
    }


def deciding(frame, temperature, steps):
    """T (G - its mean) of the first row, by step and token."""
    drawn = [
        samplings.gumbel(frame.keys, frame.positions + step, tiny.VOCAB)[0] for step in range(steps)
    ]
    return (temperature * (np.stack(drawn) - 0.57721566)).tolist()


def read_by(target):
    """Rows of text, and the three likeliest tokens after each of their tokens."""
    rows = np.random.default_rng(3).integers(0, tiny.VOCAB, (6, 20))
    rows[0, : len(tiny.PROMPTS[0])] = tiny.PROMPTS[0][:20]
    distributions = [softmax(tiny.plain_logits(*target, row)) for row in rows]
    tokens = np.argsort(-np.stack(distributions), axis=-1)[..., :3]
    return rows, tokens, np.take_along_axis(np.stack(distributions), tokens, axis=-1)


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def ngrams(target):
    """A table, as the drafter has it and as the oracle does."""
    rows, tokens, probabilities = read_by(target)
    lines = files.build(rows, (tokens, probabilities), tiny.VOCAB, k=2)
    distributions = [
        [list(zip(t.tolist(), p.tolist(), strict=True)) for t, p in zip(*row, strict=True)]
        for row in zip(tokens, probabilities, strict=True)
    ]
    return files.table(lines), oracle.tabulated(rows.tolist(), distributions, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decay", "beside", "warm"),
    [(0.6, False, 0.0), (0.0, False, 0.0), (0.5, True, 0.0), (0.5, True, 0.8)],
)
def test_rounds_are_those_of_a_heap_over_paths(target, next_logits, ngrams, decay, beside, warm):
    """Every round's tree, and what it leaves in the matrix and in the corrections."""
    drafter = DynamicTokenRecycling(
        tiny.VOCAB, num_speculative_tokens=6, max_depth=3, beam=K**2, decay=decay, k=K
    )
    draft = jax.jit(drafter.draft)
    prompt = tiny.PROMPTS[0]
    params, table = ngrams if beside else (None, {})
    drafting = {"drafter": drafter, "drafter_params": params}
    asked = {"sampling": jspec.Sampling(warm), "key": 5} if warm else {}
    state = jspec.prefill(*target, prompt[None], **drafting, **asked, max_new_tokens=20)
    matrix, beliefs, full, again = {}, ({}, {}), 0, 0
    while True:
        frame = jspec.round.frame(state)
        noise = deciding(frame, warm, 5) if warm else []
        tree, _ = draft(params, state.drafter_state, frame)
        got = rounds.drafted(tree, 0)
        text = [*prompt.tolist(), *np.asarray(state.tokens[0, : int(state.lengths[0])]).tolist()]
        want = oracle.grown(matrix, table, beliefs[0], text[-2:], 6, 3, K, noise)
        assert got.keys() == want.keys()
        for path, value in want.items():
            assert got[path] == pytest.approx(value, rel=5e-3)
        full += len(got) == 6
        begin = int(state.lengths[0])
        state = jspec.step(*target, state, **drafting)
        if state.done.all():
            break
        said = [*text[-2:], *np.asarray(state.tokens[0, begin : int(state.lengths[0])]).tolist()]
        beliefs = oracle.learnt(matrix, table, beliefs, said, noise)
        nodes = [(), *got]
        tokens = [path[-1] if path else text[-1] for path in nodes]
        again += sum(token in matrix for token in tokens)
        probs = [softmax(next_logits([*text, *path])) for path in nodes]
        matrix = oracle.visited(matrix, tokens, probs, decay, K)
        found = held(state.drafter_state)
        assert found.keys() == matrix.keys()
        for token, line in matrix.items():
            assert dict(found[token]) == pytest.approx(dict(line), rel=2e-3, abs=1e-5)
        bias = np.asarray(state.drafter_state.acceptance.bias)
        assert bias[0] == pytest.approx(beliefs[0].get(None, 0.0), abs=5e-3)
        for kind, value in beliefs[0].items():
            if kind is not None:
                assert bias[1 + kind] == pytest.approx(value, abs=5e-3)
    assert full > 3 and again > 5


def test_cells_hold_the_models_probabilities(target):
    drafter = DynamicTokenRecycling(tiny.VOCAB, k=K, update_on_prefill=True)
    prompt = tiny.PROMPTS[0]
    state = jspec.prefill(*target, prompt[None], drafter=drafter, max_new_tokens=4)
    logits = tiny.plain_logits(*target, prompt)
    read = prompt[:-1]  # the last one is the first root
    for place, token in enumerate(read):
        if token in read[place + 1 :]:
            continue  # a later one wrote the line
        probs = np.exp(logits[place]) / np.exp(logits[place]).sum()
        best = np.argsort(-probs)[:K]
        assert state.drafter_state.tokens[0, token].tolist() == best.tolist()
        np.testing.assert_allclose(state.drafter_state.probs[0, token], probs[best], rtol=1e-4)
    unseen = sorted(set(range(tiny.VOCAB)) - set(prompt.tolist()))
    assert not np.asarray(state.drafter_state.probs[0, unseen]).any()


def test_lines_that_were_never_written_are_not_drafted(target):
    drafter = DynamicTokenRecycling(tiny.VOCAB, num_speculative_tokens=5)
    tree, _ = jax.jit(drafter.draft)(None, drafter.init(2, 8, None), rounds.greedy([1, 2]))
    assert tree.valid.tolist() == [[True] + [False] * 5] * 2


def test_options_and_states_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"k is 0; pass an integer in 1 \.\. 23"):
        DynamicTokenRecycling(23, k=0)
    other = DynamicTokenRecycling(23, k=2).init(1, 8, None)
    with pytest.raises(ValueError, match=r"of \(1, 23, 2\) and .*State of \(1, 23, 3\)"):
        DynamicTokenRecycling(23, k=3).init(1, 8, other)
