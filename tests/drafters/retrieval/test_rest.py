import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import refusals
import rounds
import tiny

import jspec
from jspec import datastore


def drafted(drafter, store, texts):
    """The trees after these texts, each in a row of its own, on the host."""
    tokens, lengths = rounds.padded(texts)
    frame = rounds.greedy([text[-1] for text in texts], lengths - 1)
    output = jspec.Output(jnp.zeros((len(texts), 1, store.vocab_size)), None)

    @jax.jit
    def tree(store):
        state = drafter.init(len(texts), 99, None)
        chunk = jspec.PromptChunk.whole(tokens, lengths, output)
        state = drafter.prefill(store, state, chunk)
        return drafter.draft(store, state, frame)[0]

    return jax.device_get(tree(store))


@pytest.mark.parametrize(
    ("vocab", "size", "longest", "shortest", "nodes", "depth", "matches"),
    [(2, 60, 5, 2, 12, 4, 7), (4, 200, 16, 2, 64, 10, 32), (6, 300, 3, 1, 9, 3, 50),
     (70_000, 40, 4, 1, 5, 3, 256), (3, 1, 2, 1, 3, 2, 3)],
)  # fmt: skip
def test_the_tree_is_the_oracles_for_random_corpora(
    vocab, size, longest, shortest, nodes, depth, matches
):
    drafter = jspec.REST(
        max_match=longest, min_match=shortest, num_speculative_tokens=nodes, max_depth=depth,
        num_matches=matches,
    )  # fmt: skip
    rng = np.random.default_rng(size)
    # A few tokens of the vocabulary, the largest among them, so that matches are long.
    words = np.unique(np.linspace(0, vocab - 1, 6).astype(int))
    corpus = rng.choice(words, size)
    store = datastore.build(corpus, vocab)
    texts = [rng.choice(words, rng.integers(1, 24)).tolist() for _ in range(30)]
    # Quotations, the end of the corpus among them, so that long suffixes are found too.
    for _ in range(30):
        end = rng.integers(1, size + 1)
        texts.append([int(words[0]), *corpus[max(0, end - rng.integers(1, 20)) : end].tolist()])
    tree = drafted(drafter, store, texts)
    sizes = dict(longest=longest, shortest=shortest, nodes=nodes, matches=matches)
    hits = 0
    for row, text in enumerate(texts):
        want = oracle.rest(corpus, text, **sizes, continuation=depth)
        got = rounds.drafted(tree, row)
        assert list(got) == [path for path, _, _ in want], text
        np.testing.assert_allclose(list(got.values()), [w for _, _, w in want], rtol=1e-5)
        hits += bool(want)
    assert hits or size == 1


def test_the_tail_follows_the_text():
    """In the loop the memory is what a prompt of the same text would give."""
    model = jspec.testing.PrefixLM(vocab_size=tiny.VOCAB)
    params = model.init()
    store = datastore.build(np.arange(tiny.VOCAB), tiny.VOCAB)
    drafter = jspec.REST(max_match=4, num_speculative_tokens=3, max_depth=3)
    result = jspec.decode(
        model, params, tiny.PROMPTS, tiny.LENGTHS, drafter=drafter, drafter_params=store,
        max_new_tokens=10, stopping=jspec.Stopping(max_tokens=[10, 1, 0]),
    )  # fmt: skip
    for row, length in enumerate(tiny.LENGTHS):
        text = tiny.PROMPTS[row, :length].tolist()
        text += result.tokens[row, : result.lengths[row]].tolist()
        assert result.drafter_state[row].tolist() == ([-1] * 4 + text)[-4:]


def test_misfits_are_refused():
    model = tiny.model()

    def decode(store):
        jspec.decode(
            model, tiny.params(model), tiny.PROMPTS, tiny.LENGTHS, drafter=jspec.REST(),
            drafter_params=store, max_new_tokens=4,
        )  # fmt: skip

    few = dict(num_speculative_tokens=7, num_matches=2, max_depth=3)
    refusals.check([
        (lambda: jspec.REST(max_match=2, min_match=3), r"min_match is 3; pass .* in 1 \.\. 2"),
        (lambda: jspec.REST(num_matches=1295),
         r"num_matches is 1295; pass an integer in 1 \.\. 1294, with max_depth 10"),
        (lambda: jspec.REST(**few), r"integer in 1 \.\. 6, what 2 matches"),
        (lambda: decode(None), "is a NoneType; pass a datastore"),
        (lambda: decode(datastore.build(np.arange(10), 30)), "of 30 and the model one of 23"),
    ])  # fmt: skip
