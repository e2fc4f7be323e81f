"""N-gram tables against a dictionary of all pairs, and their files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import ngrams as oracle

import jspec
from jspec.drafters.contrib import ngrams
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


@pytest.mark.parametrize("vocab_size", [9, 400, 70_000])
def test_every_pair_has_its_line_and_every_other_its_last_tokens(vocab_size):
    text, tokens, probs = text_and_distributions(min(vocab_size, 40))
    # Large ids, whose pairs fill more than 32 bits.
    text, tokens = vocab_size - 1 - text, vocab_size - 1 - tokens
    table = ngrams.table(ngrams.build(text, (tokens, probs), vocab_size, K))
    want = as_dictionary(text, tokens, probs)
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
        assert dict(
            zip(
                found[probabilities > 0].tolist(),
                probabilities[probabilities > 0].tolist(),
                strict=True,
            )
        ) == (pytest.approx(dict(line), rel=1e-5))
        assert (np.diff(probabilities) <= 0).all()
    assert all(orders.values()) or vocab_size == 9, "every case is met"


def test_padding_counts_for_nothing():
    text, tokens, probs = text_and_distributions(9)
    live = np.arange(text.shape[1]) < np.arange(3, 3 + len(text))[:, None] * 5
    table = ngrams.table(ngrams.build(text, (tokens, probs), 9, K, live))
    want = as_dictionary(text, tokens, probs, live)
    pairs = np.array([key for key in want if len(key) == 2], np.int32)
    found, probabilities, order = table.after(jnp.asarray(pairs[:, 0]), jnp.asarray(pairs[:, 1]))
    assert (order == 2).all()
    for pair, tokens, line in zip(
        pairs.tolist(), found.tolist(), probabilities.tolist(), strict=True
    ):
        assert dict(zip(tokens, line, strict=True)) == pytest.approx(dict(want[tuple(pair)]))
    assert int((table.line_of_pair >= 0).sum()) == len(pairs)


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
