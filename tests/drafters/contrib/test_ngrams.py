"""Tables of n-grams and of the vocabulary, and their files."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from oracle import ngrams as oracle

import jspec
from jspec.drafters.contrib import ngrams, vocabulary_table
from jspec.drafters.retrieval.token_pairs import pair_key

K = 3


def text_and_distributions(vocab_size, seed=0, rows=7, length=60):
    """Rows of tokens, few of which are frequent, and distributions of four tokens after each."""
    rng = np.random.default_rng(seed)
    text = np.minimum(rng.geometric(0.2, (rows, length)), vocab_size) - 1
    tokens = np.argsort(rng.uniform(size=(rows, length, min(vocab_size, 9))), axis=-1)[..., :4]
    probs = np.sort(rng.dirichlet(np.ones(4), (rows, length)), axis=-1)[..., ::-1]
    return text, tokens, probs


def as_dictionary(text, tokens, probs, live=None):
    distributions = [
        [list(zip(t.tolist(), p.tolist(), strict=True)) for t, p in zip(*row, strict=True)]
        for row in zip(tokens, probs, strict=True)
    ]
    ends = [len(row) for row in text] if live is None else live.sum(-1).tolist()
    rows = [row[:end].tolist() for row, end in zip(text, ends, strict=True)]
    return oracle.tabulated(
        rows, [distribution[:end] for distribution, end in zip(distributions, ends, strict=True)], K
    )


@pytest.mark.parametrize(
    ("vocab_size", "padded"), [(9, False), (9, True), (400, True), (70_000, False)]
)
def test_every_pair_has_its_line_and_every_other_its_last_tokens(vocab_size, padded):
    """Padding counts for nothing."""
    text, tokens, probs = text_and_distributions(min(vocab_size, 40))
    # Large ids, whose pairs fill more than 32 bits.
    text, tokens = vocab_size - 1 - text, vocab_size - 1 - tokens
    live = np.arange(text.shape[1]) < np.arange(3, 3 + len(text))[:, None] * 5 if padded else None
    table = ngrams.table(ngrams.build(text, (tokens, probs), vocab_size, K, live))
    want = as_dictionary(text, tokens, probs, live)
    assert int((table.line_of_pair >= 0).sum()) == sum(len(key) == 2 for key in want)
    known = sorted({int(token) for token in text.ravel()})
    others = [token for token in (0, 1, 5) if token not in known]
    asked = [(a, b) for a in (*known, *others, -1) for b in (*known, *others)]
    before, last = np.array(asked, np.int32).T
    got = jax.device_get(jax.jit(type(table).after)(table, jnp.asarray(before), jnp.asarray(last)))
    orders = {0: 0, 1: 0, 2: 0}
    for (a, b), found, probabilities, order in zip(asked, *got, strict=True):
        expected = 2 if (a, b) in want else 1 if (b,) in want else 0
        assert order == expected
        orders[expected] += 1
        line = want.get((a, b)) or want.get((b,), [])
        held = (x[probabilities > 0].tolist() for x in (found, probabilities))
        assert dict(zip(*held, strict=True)) == pytest.approx(dict(line), rel=1e-5)
        assert (np.diff(probabilities) <= 0).all()
    assert all(orders.values()) or vocab_size == 9, "every case is met"


def test_pairs_are_told_apart_where_their_keys_are():
    """The bound of the promise: up to 65,536 tokens no two pairs share a key."""
    ends = np.array([0, 1, 255, 65_534, 65_535])
    pairs = np.stack(np.meshgrid(ends, ends), -1).reshape(-1, 2)
    assert len(set(pair_key(*pairs.T, 65_536).tolist())) == len(pairs)
    one, other = pair_key(np.array([1, 1 + 2**15]), np.array([0, 0]), 2**17)
    assert one == other


def test_a_file_holds_its_table(tmp_path):
    text, tokens, probs = text_and_distributions(9)
    lines = ngrams.build(text, (tokens, probs), 9, K)
    ngrams.save(tmp_path / "table", lines, "mine")
    ngrams.save(tmp_path / "table", lines, "mine")  # in the place of the other
    held, want = ngrams.load(tmp_path / "table", "mine", 9), ngrams.table(lines)
    for got, expected in zip(jax.tree.leaves(held), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-3)
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
    for target, size in (("yours", 9), ("mine", 10)):
        with pytest.raises(
            jspec.InputError, match="is a table of another model's distributions; make one"
        ):
            ngrams.load(tmp_path / "table", target, size)
    (tmp_path / "broken").write_bytes((tmp_path / "table").read_bytes()[:-9])
    with pytest.raises(jspec.InputError, match="broken cannot be read as a table of n-grams"):
        ngrams.load(tmp_path / "broken", "mine", 9)
    jspec.memory_file.save(
        tmp_path / "memory", jspec.Suffix(capacity=8), jspec.Suffix(capacity=8).init(1, 8, None)
    )
    with pytest.raises(jspec.InputError, match="memory is not a table of n-grams; make one with"):
        ngrams.load(tmp_path / "memory", "mine", 9)
    with pytest.raises(jspec.InputError, match="absent cannot be read as a table of n-grams"):
        ngrams.load(tmp_path / "absent", "mine", 9)


def test_text_that_makes_no_table_is_refused():
    text, tokens, probs = text_and_distributions(9)
    with pytest.raises(jspec.InputError, match="there is no text"):
        ngrams.build(text[:0], (tokens[:0], probs[:0]), 9)
    with pytest.raises(jspec.InputError, match=r"the text has tokens 0 \.\. 8, outside the vocabu"):
        ngrams.build(text, (tokens, probs), 8)
    with pytest.raises(jspec.InputError, match="k is 0; pass an integer of at least 1"):
        ngrams.build(text, (tokens, probs), 9, 0)


CANDIDATES = 5
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
    return oracle.of_vocabulary(last.reshape(len(prefixes), size, size), CANDIDATES)


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """Three parts of the vocabulary of 23, of which the last is not full."""
    monkeypatch.setattr(vocabulary_table, "_TOKENS", 9)


@pytest.mark.parametrize(("model", "params"), MODELS, ids=lambda one: type(one).__name__)
def test_a_line_is_the_mean_after_each_prefix(model, params):
    *_, lines = ngrams.tabulate(model, params, PREFIXES, CANDIDATES)
    tokens, probs = expected(model, params)
    np.testing.assert_array_equal(lines.tokens, tokens)
    np.testing.assert_allclose(lines.probs, probs, rtol=2e-5)
    assert (expected(model, params, PREFIXES[:1])[0] != tokens).any(), "it could not fail"
    found, probs, order = ngrams.table(lines).after(jnp.array([3, -1]), jnp.array([7, 22]))
    np.testing.assert_array_equal(found, lines.tokens[[7, 22]])
    assert (probs > 0).all() and order.tolist() == [1, 1]


def test_what_was_stopped_goes_on_to_the_same_lines():
    model, params = MODELS[0]
    every = list(ngrams.tabulate(model, params, PREFIXES, CANDIDATES))
    assert [len(lines.singles) for lines in every] == [9, 18, 23]
    for place, earlier in enumerate(every):
        later = list(ngrams.tabulate(model, params, PREFIXES, CANDIDATES, earlier))
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
