"""Stochastic beam search (Kool et al. 2019): RSD-S's tree (Jeon et al. 2024, Alg. 8, 9).

It samples whole sequences without replacement: a sequence's perturbed log-probability is a Gumbel
variable around its log-probability, and a prefix has the largest among its sequences. So the
order of all sequences, whose distribution is known in closed form, decides the tree.
"""

from collections import defaultdict
from itertools import product

import numpy as np

from .trees import tree_of


def rsd_s(q, noise, width, length):
    """The tree of a stochastic beam search; siblings by perturbed log-probability.

    The printed Algorithm 9 picks the beam by untruncated values; it must be by truncated ones.

    Args:
      q: prefix -> distribution [V] of the draft model, see trees.py.
      noise: prefix -> Gumbel noise [V] for the node's children.
      width: most nodes of a level; fewer where the model allows fewer.
      length: levels below the root.
    """
    children = defaultdict(list)
    beam = [((), 0.0)]
    for _ in range(length):
        candidates = _expanded(q, noise, beam)
        beam = sorted(candidates, key=lambda candidate: -candidate[1])[:width]
        for prefix, _ in beam:
            children[prefix[:-1]].append(prefix[-1])
    return tree_of(lambda prefix: children.get(prefix, ()))


def _expanded(q, noise, beam):
    """[(prefix, perturbed log-probability)] of all possible children of a beam."""
    candidates = []
    for prefix, value in beam:
        above = sum(np.log(q(prefix[:depth])[token]) for depth, token in enumerate(prefix))
        with np.errstate(divide="ignore"):
            perturbed = above + np.log(q(prefix)) + noise(prefix)
        values = _truncated(perturbed, value)
        possible = np.flatnonzero(np.isfinite(perturbed))
        candidates += [((*prefix, int(token)), values[token]) for token in possible]
    return candidates


def _truncated(perturbed, limit):
    """The same Gumbel variables given that the largest is `limit` (Algorithm 9, line 6).

    -log(e^-limit - e^-largest + e^-perturbed), in an order in which nothing cancels.
    """
    largest = perturbed.max()
    return limit - np.log1p(np.exp(limit - largest) * np.expm1(largest - perturbed))


def every_beam(q, width, length):
    """All trees of `rsd_s` with their probabilities, as from `every_tree`: a sum over orders.

    The order of all sequences by perturbed value is that of draws without replacement from their
    joint distribution (Plackett-Luce). Level l of the tree is the first `width` different
    beginnings of l
    tokens: the parent of each of them was itself among the first `width`.
    """
    probabilities = defaultdict(float)
    sequences = {
        sequence: np.prod([q(sequence[:depth])[token] for depth, token in enumerate(sequence)])
        for sequence in product(range(len(q(()))), repeat=length)
    }

    def adds(level, prefix):
        return len(level) < width and prefix not in level

    def go(levels, weight):
        # The others change no level, now or later: the order without them is equally distributed.
        left = {
            sequence: probability
            for sequence, probability in sequences.items()
            if probability > 0
            and any(adds(level, sequence[:depth]) for depth, level in enumerate(levels, 1))
        }
        total = sum(left.values())
        for sequence, probability in left.items():
            longer = [
                [*level, sequence[:depth]] if adds(level, sequence[:depth]) else level
                for depth, level in enumerate(levels, 1)
            ]
            go(longer, weight * probability / total)
        if not left:
            children = defaultdict(list)
            for prefix in (prefix for level in levels for prefix in level):
                children[prefix[:-1]].append(prefix[-1])
            tokens, parents = tree_of(lambda prefix: children.get(prefix, ()))
            probabilities[tuple(tokens), tuple(parents)] += weight

    go([[]] * length, 1.0)
    return list(probabilities.items())
