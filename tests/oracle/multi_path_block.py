"""Greedy multi-path block verification (Thomas and Pal 2026, arXiv:2602.16961).

K chains are drawn one by one from q. At every node the tokens are ordered by p / q, equal ones by
their ids; the chain that is last in the lexicographic order is judged by block verification, with
its own conditional distributions in the place of q.
"""

from itertools import product

import numpy as np

from .block import block


def tokens_in_order(p, q):
    """All tokens, the one that the target likes most alongside the draft the last."""
    ratios = [p[token] / q[token] if q[token] > 0 else 0.0 for token in range(len(p))]
    return sorted(range(len(p)), key=lambda token: (ratios[token], token))


def rank(chain, p, q):
    """Places of a chain's tokens among their nodes: compared as tuples."""
    return tuple(
        tokens_in_order(p[chain[:i]], q[chain[:i]]).index(token) for i, token in enumerate(chain)
    )


def of_the_last(p, q, num, chains):
    """The conditional distributions, by prefix, of the last of so many independent chains.

    By the distribution of a maximum over whole chains, summed over those that begin alike.
    """
    size = len(q[()])
    words = sorted(product(range(size), repeat=num), key=lambda word: rank(word, p, q))
    mass, below = {}, 0.0
    for word in words:
        weight = np.prod([q[word[:i]][token] for i, token in enumerate(word)])
        for i in range(num + 1):
            gained = (below + weight) ** chains - below**chains
            mass[word[:i]] = mass.get(word[:i], 0.0) + gained
        below += weight
    found = {}
    for prefix in (word[:i] for word in words for i in range(num)):
        after = np.array([mass[(*prefix, token)] for token in range(size)])
        found[prefix] = after / mass[prefix] if mass[prefix] > 0 else q[prefix]
    return found


def multi_path_block(p, q, drawn, skewed=None):
    """Stops and residuals as of `block`, and the chain that was judged.

    Args:
        p, q: from the tokens so far to a distribution.
        drawn: the chains.
        skewed: in the place of `of_the_last`, for what is wrong.
    """
    num = len(drawn[0])
    best = max(drawn, key=lambda chain: rank(chain, p, q))
    skewed = of_the_last(p, q, num, len(drawn)) if skewed is None else skewed
    target = np.array([p[best[:i]] for i in range(num + 1)])
    draft = np.array([skewed[best[:i]] for i in range(num)])
    return (*block(target, draft, best), best)


def multi_path_distribution(verify, p, q, num, chains):
    """The joint distribution [V] * (num + 1) of what is emitted, over all draws of the chains."""
    size = len(q[()])
    joint = np.zeros([size] * (num + 1))
    words = list(product(range(size), repeat=num))
    of = {word: np.prod([q[word[:i]][token] for i, token in enumerate(word)]) for word in words}
    for drawn in product(words, repeat=chains):
        weight = np.prod([of[word] for word in drawn])
        if weight == 0:
            continue
        stops, residuals, best = verify(p, q, drawn)
        for kept, (stop, residual) in enumerate(zip(stops, residuals, strict=True)):
            for rest in product(range(size), repeat=num + 1 - kept):
                whole = (*best[:kept], *rest)
                later = [p[whole[:i]][whole[i]] for i in range(kept + 1, num + 1)]
                joint[whole] += weight * stop * residual[rest[0]] * np.prod(later)
    return joint


def multi_path_kept(verify, p, q, num, chains):
    """Drafted tokens kept a round, on average."""
    words = list(product(range(len(q[()])), repeat=num))
    of = {word: np.prod([q[word[:i]][token] for i, token in enumerate(word)]) for word in words}
    return sum(
        np.prod([of[word] for word in drawn]) * (verify(p, q, drawn)[0] @ np.arange(num + 1))
        for drawn in product(words, repeat=chains)
    )
