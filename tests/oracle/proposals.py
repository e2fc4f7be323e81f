"""Every way that the children of a node can be drawn, so that losslessness is a finite sum.

A set of draws is a list of `(children, weight)` whose weights sum to 1. A rule is lossless for it
if the emission, averaged over it, is the target's distribution.
"""

from itertools import combinations, product

import numpy as np


def draws_iid(q, num):
    """`num` children from q, each on its own."""
    probabilities = [
        (children, np.prod(q[list(children)])) for children in product(range(len(q)), repeat=num)
    ]
    return [(children, weight) for children, weight in probabilities if weight > 0]


def draws_swor(q, num):
    """`num` children from q without replacement, in order; fewer where q's support is smaller."""
    support = [token for token in range(len(q)) if q[token] > 0]
    draws = [((), 1.0)]
    for _ in range(min(num, len(support))):
        longer = []
        for children, weight in draws:
            left = [token for token in support if token not in children]
            total = sum(q[token] for token in left)
            longer += [((*children, token), weight * q[token] / total) for token in left]
        draws = longer
    return draws


def list_bound(p, q, num):
    """The list matching lemma (Rowan et al. 2025): Gumbel list sampling keeps no less than this.

    Sum over tokens j of K / sum over i of (max(p_i / p_j, q_i / q_j) + (K - 1) p_i / p_j).
    """
    tokens = [j for j in range(len(p)) if p[j] > 0 and q[j] > 0]
    return sum(
        num / sum(max(p[i] / p[j], q[i] / q[j]) + (num - 1) * p[i] / p[j] for i in range(len(p)))
        for j in tokens
    )


def optimal_acceptance(p, q, num):
    """The best any rule can do with `num` independent children (OTM; SpecTr, Sun et al. 2023).

    The least, over all sets A of tokens, of 1 + p(A) - q(A)^K.
    """
    tokens = range(len(p))
    sets = [list(chosen) for size in range(len(p) + 1) for chosen in combinations(tokens, size)]
    return min(1 + p[chosen].sum() - q[chosen].sum() ** num for chosen in sets)
