"""Log-probabilities against whole forward passes over the text, in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import tables
import tiny

import jspec
from jspec.processors import logprobs
from jspec.processors.log_probabilities import _scores

SIZE, LIMIT = 23, 12
MODEL = tables.Table(SIZE, context=64)
PROBS = tables.distributions(np.random.default_rng(5), 1, SIZE, 2)
WEIGHTS = tables.logits(PROBS)
TREE = jspec.merge(
    jspec.TokenRecycling(SIZE, jspec.tree.branching([2, 1])),
    jspec.PromptLookup(num_speculative_tokens=3, whole=False),
)
SAMPLING = jspec.Sampling(
    temperature=np.array([0.0, 0.7, 1.3]), top_k=np.array([0, 6, 0]), top_p=np.array([1, 1, 0.8])
)
CALL = dict(
    prompt=tiny.PROMPTS, prompt_lengths=tiny.LENGTHS, drafter=TREE, max_new_tokens=LIMIT, key=1,
    stopping=jspec.Stopping(max_tokens=[LIMIT, LIMIT, 5]), sampling=SAMPLING,
)  # fmt: skip


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def of_a_row(result, row, drawn_from):
    """The expected log-probabilities along a row's text."""
    text = tiny.PROMPTS[row, : tiny.LENGTHS[row]].tolist()
    for token in np.asarray(result.tokens[row, : result.lengths[row]]).tolist():
        logits = np.asarray(WEIGHTS[0][tuple([0, *text][-2:])], np.float64)
        yield token, drawn_from(logits, row)
        text.append(token)


def raw(logits, row):
    return log_softmax(logits)


def processed(logits, row):
    if SAMPLING.temperature[row] == 0:
        return log_softmax(logits)
    settings = (getattr(SAMPLING, name)[row] for name in ("temperature", "top_k", "top_p"))
    with np.errstate(divide="ignore"):
        return np.log(oracle.probabilities(logits, *settings))


def temp_scaled(logits, row):
    """As tunix (`compute_per_token_logps`) and TRL score a text; tunix greedy rows at 1."""
    return log_softmax(logits / (SAMPLING.temperature[row] or 1))


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("raw_logprobs", raw),
        pytest.param("temp_scaled_logprobs", temp_scaled, marks=pytest.mark.slow),
        pytest.param("processed_logprobs", processed, marks=pytest.mark.slow),
    ],
)
def test_they_equal_a_plain_forward_pass(mode, wanted):
    result = jspec.decode(MODEL, WEIGHTS, **CALL, processors=logprobs(3, mode))
    assert int(result.stats.num_accepted_tokens.sum()) > 0
    found = jax.device_get(result.logprobs)
    for row in range(3):
        for place, (token, want) in enumerate(of_a_row(result, row, wanted)):
            np.testing.assert_allclose(found.token_logprobs[row, place], want[token], atol=1e-4)
            best = found.top_tokens[row, place]
            np.testing.assert_allclose(
                found.top_logprobs[row, place], np.sort(want)[::-1][:3], atol=1e-4
            )
            np.testing.assert_allclose(found.top_logprobs[row, place], want[best], atol=1e-4)
        assert not found.top_logprobs[row, result.lengths[row] :].any()
        assert not found.token_logprobs[row, result.lengths[row] :].any()


def test_each_mode_has_numbers_of_its_own():
    """They differ where temperature or filters do anything, so no test passes for two of them."""
    result = jspec.decode(MODEL, WEIGHTS, **CALL, processors=logprobs(3))

    def numbers(mode):
        places = (each for row in (1, 2) for each in of_a_row(result, row, mode))
        return np.array([want[token] for token, want in places])

    for one, other in itertools.combinations((raw, processed, temp_scaled), 2):
        assert np.abs(numbers(one) - numbers(other)).max() > 0.1


def test_tokens_that_are_hardly_drawn_have_log_probabilities():
    """A probability below 1e-38 is 0, its logarithm is not; what a filter takes out has none."""
    logits = jnp.array([[[0.0, -100.0, -1.0]]] * 2)
    sampling = jspec.Sampling(jnp.array([0.5, 0.5]), top_k=jnp.array([0, 2]))
    found = np.asarray(_scores("processed_logprobs", logits, sampling))[:, 0, 1]
    np.testing.assert_allclose(found, [-200 - np.log1p(np.exp(-2.0)), -np.inf], rtol=1e-6)


def test_a_trainers_log_probabilities_know_no_processors():
    """A trainer scores the text by the model alone; a tiny temperature makes no NaN."""
    temperatures = np.array([0.0, 0.7, 1e-30])
    call = CALL | dict(sampling=jspec.Sampling(temperatures))
    control = [jspec.processors.logit_bias({3: 2.0}), logprobs(0, "temp_scaled_logprobs")]
    result = jspec.decode(MODEL, WEIGHTS, **call, processors=control)

    def scored(logits, row):
        return log_softmax(logits / (temperatures[row] or 1))

    for row, found in enumerate(np.asarray(result.logprobs.token_logprobs)):
        for place, (token, want) in enumerate(of_a_row(result, row, scored)):
            np.testing.assert_allclose(found[place], want[token], rtol=1e-5, atol=1e-4)


def test_chunks_have_the_log_probabilities_of_their_tokens():
    whole = jspec.decode(MODEL, WEIGHTS, **CALL, processors=logprobs(3))
    rows = [[], [], []]
    for chunk in jspec.stream(MODEL, WEIGHTS, **CALL, processors=logprobs(3)):
        for row, tokens in enumerate(chunk.tokens):
            rows[row] += zip(
                chunk.logprobs.token_logprobs[row, : len(tokens)].tolist(),
                chunk.logprobs.top_tokens[row, : len(tokens)].tolist(),
                strict=True,
            )
    for row, found in enumerate(rows):
        count = int(whole.lengths[row])
        assert [one for one, _ in found] == whole.logprobs.token_logprobs[row, :count].tolist()
        assert [best for _, best in found] == whole.logprobs.top_tokens[row, :count].tolist()


def test_none_are_kept_where_none_are_asked_for():
    state = jax.eval_shape(lambda: jspec.prefill(MODEL, WEIGHTS, **CALL))
    assert state.processors == ()
    state = jax.eval_shape(lambda: jspec.prefill(MODEL, WEIGHTS, **CALL, processors=logprobs()))
    assert state.logprobs.top_logprobs is None
    with pytest.raises(jspec.InputError, match="logprobs is 24; pass an integer in 0"):
        jspec.decode(MODEL, WEIGHTS, **CALL, processors=logprobs(24))
    with pytest.raises(jspec.InputError, match="mode is 'logits'; pass 'raw_logprobs'"):
        logprobs(1, "logits")
