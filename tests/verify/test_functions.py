"""The verifiers alone: an engine of one's own, with nothing of jspec but trees and rules."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tables

import jspec
from jspec.types import Tree

SIZE, ROWS = 5, 3
DISTRIBUTIONS = tables.distributions(np.random.default_rng(3), 1, SIZE, 2)
LOGITS = tables.logits(DISTRIBUTIONS)[0]
PROMPTS = [[1, 2, 3], [4], [2, 2]]
SAMPLING = jspec.Sampling(
    np.array([0.0, 0.8, 1.3]), np.zeros(3, int), np.array([1.0, 1.0, 0.9]), np.zeros(3)
)
DRAWN = dict(sampling=SAMPLING, key=5, row_ids=np.array([7, 0, -3]))


def drawn_tree(rng, roots):
    """Trees of any shape, with tokens that the target may well not take."""
    tokens, parents = rng.integers(SIZE, size=(ROWS, 8)), np.full((ROWS, 8), -1)
    tokens[:, 0] = roots
    for node in range(1, 8):
        parents[:, node] = rng.integers(node, size=ROWS)
    valid = rng.uniform(size=(ROWS, 8)) < 0.9
    return Tree(*map(jnp.asarray, (tokens, parents, valid)), depth=4, width=4)


def scored(tree, texts):
    """The logits of the nodes, each after its own path, in NumPy."""
    found = np.zeros((ROWS, 8, SIZE), np.float32)
    for row, node in np.ndindex(ROWS, 8):
        path, at = [], node
        while at > 0:
            path, at = [int(tree.tokens[row, at]), *path], int(tree.parents[row, at])
        found[row, node] = LOGITS[tuple([0, *texts[row], *path][-2:])]
    return found


@partial(jax.jit, static_argnums=0)
def verified(verify, tree, logits, positions, given):
    verdict = verify(tree, logits, positions, **given)
    return verdict, jspec.verify.tokens(tree, verdict)


def by_own_engine(verify=jspec.verify.coupled, prepare=lambda *given: given, **given):
    """Nine rounds; `prepare` may change what the verifier is given."""
    texts, rng = [list(prompt) for prompt in PROMPTS], np.random.default_rng(0)
    accepted = 0
    for _ in range(9):
        tree = drawn_tree(rng, [text[-1] for text in texts])
        positions = np.array([len(text) - 1 for text in texts])
        verdict, tokens = verified(
            verify, *prepare(tree, scored(tree, texts), positions, dict(given))
        )
        assert not verdict.failed.any()
        for row, count in enumerate(verdict.path_lengths.tolist()):
            texts[row] += tokens[row, :count].tolist()
            accepted += count - 1
    assert accepted
    return [text[len(prompt) :] for text, prompt in zip(texts, PROMPTS, strict=True)]


@pytest.mark.parametrize("given", [{}, DRAWN], ids=["greedy", "drawn"])
def test_the_coupled_rule_alone_gives_the_tokens_of_decode(given):
    lengths = [len(prompt) for prompt in PROMPTS]
    padded = [prompt + [0] * (3 - len(prompt)) for prompt in PROMPTS]
    wanted = jspec.decode(
        tables.Table(SIZE), LOGITS[None], padded, lengths, max_new_tokens=60, **given
    )
    found = by_own_engine(**given)
    for row, tokens in enumerate(found):
        assert tokens == wanted.tokens[row, : len(tokens)].tolist()
    if given:  # the negative control
        other = by_own_engine(**given | dict(key=6))
        assert other != found


def packed(tree, logits, positions, given):
    """The logits of valid nodes alone, one behind the other, and NaN behind them."""
    valid = np.array(tree.valid)
    valid[:, 0] = True
    places = np.where(valid, np.cumsum(valid.ravel()).reshape(valid.shape) - 1, valid.size)
    rows = np.full((valid.size, SIZE), np.nan, np.float32)
    rows[: valid.sum()] = logits[valid]
    unseen = tree.replace(valid=jnp.ones_like(tree.valid))  # `places` says what was scored
    return unseen, rows, positions, given | dict(places=places)


def test_packed_logits_are_the_same():
    assert by_own_engine(prepare=packed, **DRAWN) == by_own_engine(**DRAWN)


def test_a_function_has_the_verifier_of_its_scheme():
    for name in ("coupled", "recursive", "traversal", "block"):
        verifier = getattr(jspec.schemes, name.upper()).verifier
        assert getattr(jspec.verify, name).args == (verifier,)


def test_misfits_are_refused_in_one_sentence():
    tree = jspec.tree.chain(2).fill(jnp.array([[5, 6, 7]]))
    logits = jnp.zeros((1, 3, 9))
    refusals.check([
        (lambda: jspec.verify.coupled(tree, logits[:, :2], [4]), r"logits has shape \(1, 2, 9\)"),
        (lambda: jspec.verify.coupled(tree, logits, [-1]), r"positions\[0\] is -1, outside 0"),
        (lambda: jspec.verify.coupled(tree, logits, [1], sampling=jspec.Sampling()), "needs a key"),
        (lambda: jspec.verify.recursive(tree, logits, [4]), "distribution q that the"),
        (lambda: jspec.verify.coupled(tree, logits, [4], key="x"), "key is 'x'; pass one"),
    ])  # fmt: skip
