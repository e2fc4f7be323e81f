"""Tables of the vocabulary against a forward pass for each prefix and token, alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from oracle import ngrams as oracle

import jspec
from jspec.drafters.contrib import ngrams, vocabulary_table

K = 5
PREFIXES = [[5, 3, 9, 1], [5], []]
MODELS = [
    (model := tiny.model(), tiny.params(model)),
    (model := jspec.testing.PrefixLM(), model.init()),
    (model := jspec.testing.RecurrentLM(), model.init()),
]


def expected(model, params, prefixes=PREFIXES):
    """Lines by the oracle, of texts that have no memory and no siblings."""
    size, length = model.vocab_size, max(map(len, prefixes)) + 1
    rows = np.zeros((len(prefixes) * size, length), np.int32)
    ends = np.repeat([len(prefix) for prefix in prefixes], size)
    for row, (number, token) in zip(rows, np.ndindex(len(prefixes), size), strict=True):
        row[: ends[number * size] + 1] = [*prefixes[number], token]
    memory = model.init_memory(len(rows), 1)
    logits = jax.jit(model.apply)(params, *tiny.causal(rows), memory).logits
    last = np.asarray(logits, np.float64)[np.arange(len(rows)), ends]
    return oracle.of_vocabulary(last.reshape(len(prefixes), size, size), K)


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """Three parts of the vocabulary of 23, of which the last is not full."""
    monkeypatch.setattr(vocabulary_table, "_TOKENS", 9)


@pytest.mark.parametrize(("model", "params"), MODELS, ids=lambda one: type(one).__name__)
def test_a_line_is_the_mean_after_each_prefix(model, params):
    *_, lines = ngrams.tabulate(model, params, PREFIXES, K)
    tokens, probs = expected(model, params)
    np.testing.assert_array_equal(lines.tokens, tokens)
    np.testing.assert_allclose(lines.probs, probs, rtol=2e-5)
    assert (expected(model, params, PREFIXES[:1])[0] != tokens).any(), "it could not fail"
    found, probs, order = ngrams.table(lines).after(jnp.array([3, -1]), jnp.array([7, 22]))
    np.testing.assert_array_equal(found, lines.tokens[[7, 22]])
    assert (probs > 0).all() and order.tolist() == [1, 1]


def test_what_was_stopped_goes_on_to_the_same_lines():
    model, params = MODELS[0]
    every = list(ngrams.tabulate(model, params, PREFIXES, K))
    assert [len(lines.singles) for lines in every] == [9, 18, 23]
    for place, earlier in enumerate(every):
        later = list(ngrams.tabulate(model, params, PREFIXES, K, earlier))
        assert len(later) == 2 - place
        for lines in later[-1:]:
            np.testing.assert_array_equal(lines.tokens, every[-1].tokens)
            np.testing.assert_array_equal(lines.probs, every[-1].probs)


def test_what_does_not_fit_is_refused_before_anything_is_compiled():
    model, params = jspec.testing.PrefixLM(context=4), jspec.testing.PrefixLM().init()
    distributions = np.array([[[1], [2]]]), np.array([[[0.9], [0.8]]])
    others = ngrams.build(np.array([[0, 1]]), distributions, vocab_size=23, k=1)
    refused: list[tuple[list[list[int]], dict[str, Any], str]] = [
        ([], {}, r"there is no prefix; pass \[\[\]\]"),
        ([[1], [2, 23]], {}, "a token of prefix 1 is 23; pass an integer in 0 .. 22"),
        ([[1, 2, 3, 4]], {}, "prefix 0 has 4 tokens and the model's context is 4; shorten it to 3"),
        ([[1]], {"k": 24}, "k is 24; pass an integer in 1 .. 23"),
        ([[1]], {"earlier": others}, "have 1 candidates, 1 pairs and a vocabulary of 23; pass"),
    ]
    for prefixes, options, said in refused:
        with pytest.raises(jspec.InputError, match=said):
            next(ngrams.tabulate(model, params, prefixes, **options))
    with pytest.raises(jspec.InputError, match="params is None"):
        next(ngrams.tabulate(model, None, [[1]]))
