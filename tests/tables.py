"""Models that read distributions from a table: what they emit has a known distribution."""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import oracle

from jspec import memory
from jspec import sampling as samplings
from jspec.memory import TreeKV
from jspec.testing.certification.goodness import distance as distance
from jspec.types import Output


@dataclass(frozen=True)
class Table:
    """The next token's logits, by the last tokens.

    Weights are [B or 1, V, .., V, L]: a table for each row or one for all, and an axis for each
    token that counts. Earlier tokens are looked up as attention would, through cache, nodes and
    mask: the key of a token is its position and the value the token, each one wide. So a token in
    the wrong place, or is seen where it is not an ancestor, changes the distribution.
    """

    vocab_size: int
    context: int | None = None

    def init_memory(self, batch, capacity):
        return memory.init(batch, capacity, 1, 1, 1, jnp.float32)

    commit, until = staticmethod(memory.commit), staticmethod(memory.until)

    def apply(self, params, tokens, positions, mask, cache, nodes=None):
        batch, count = tokens.shape
        own = TreeKV(
            (positions[:, None, :, None].astype(jnp.float32),),
            (tokens[:, None, :, None].astype(jnp.float32),),
        )
        held = [] if nodes is None else [nodes]
        if cache is not None:
            past = jnp.arange(cache.capacity) < cache.lengths[:, None]
            past = jnp.broadcast_to(past[:, None], (batch, count, cache.capacity))
            mask, held = jnp.concatenate([past, mask], axis=-1), [cache, *held]
        keys, values = (
            jnp.concatenate([*parts, end], axis=2)[:, 0, :, 0]
            for parts, end in (
                ([part.keys[0] for part in held], own.keys[0]),
                ([part.values[0] for part in held], own.values[0]),
            )
        )
        order = params.ndim - 2
        before = [
            # The sum of all tokens at a position: with two of them it is neither.
            jnp.where(mask & (keys[:, None] == positions[..., None] - back), values[:, None], 0)
            .sum(-1)
            .astype(jnp.int32)
            for back in reversed(range(order))
        ]
        row = jnp.minimum(jnp.arange(batch), len(params) - 1)[:, None]
        return Output(logits=params[row, *before], hidden=None, tentative=own)


def distributions(rng, batch, size, order, zeros=0.0):
    """[B, V, .., V] distributions in float64, some tokens impossible but never all."""
    mass = rng.dirichlet(np.ones(size), size=(batch, *[size] * order))
    mass = np.where(rng.uniform(size=mass.shape) < zeros, 0, mass)
    likely = rng.integers(size, size=mass.shape[:-1])[..., None] == np.arange(size)
    mass = mass + 0.05 * likely
    return mass / mass.sum(-1, keepdims=True)


def logits(distributions):
    with np.errstate(divide="ignore"):
        return np.log(distributions).astype(np.float32)


def counted(tokens, size):
    """[V, .., V] how often rows of tokens occur."""
    tokens = np.asarray(tokens)
    counts = np.zeros((size,) * tokens.shape[1])
    np.add.at(counts, tuple(tokens.T), 1)
    return counts


def after(distributions, context):
    """The distribution of the token after `context` and a prefix: what the oracles call a model."""
    order, size = distributions.ndim - 1, distributions.shape[-1]

    def probs(prefix):
        tokens = (*[0] * order, *context, *prefix)
        return distributions[tuple(tokens[len(tokens) - order :])]

    assert distributions.shape == (size,) * (order + 1)
    return probs


def joint(probs, size, depth):
    """[V, .., V] distribution of the first tokens."""
    probabilities = np.ones((size,) * depth)
    for sequence in itertools.product(range(size), repeat=depth):
        for i, token in enumerate(sequence):
            probabilities[sequence] *= probs(sequence[:i])[token]
    return probabilities


def tree_of(tree, row):
    """A row of a drafted tree as the oracles' `(tokens, parents)`.

    Absent nodes are left out, and what hangs below the later of equal siblings: none walks there.
    """
    tokens, parents, valid = (np.asarray(x[row]) for x in (tree.tokens, tree.parents, tree.valid))
    kept, first, number = [(oracle.ROOT, -1)], {}, {0: 0}
    for node in np.flatnonzero(valid)[1:].tolist():
        above, token = int(parents[node]), int(tokens[node])
        if above in number and first.setdefault((above, token), node) == node:
            number[node] = len(kept)
        if above in number:
            kept.append((token, number[above]))
    return [token for token, _ in kept], [parent for _, parent in kept]


def chooser(temperature, key, row, size):
    """Greedy, or the argmax of log p and the position's noise."""
    keys = samplings.row_keys(jax.random.key(key), jnp.array([row]))

    def choose(logits, position):
        if temperature == 0:
            return np.argmax(logits)
        noise = np.asarray(samplings.gumbel(keys, jnp.array([position]), size)[0], np.float64)
        with np.errstate(divide="ignore"):
            return np.argmax(np.log(oracle.probabilities(logits, temperature)) + noise)

    return choose
