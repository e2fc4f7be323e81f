"""Acceptance at one node: the child that is kept, or else the token that is drawn.

A rule takes the target's distribution p [V], the distribution q [V] that the children were drawn
from, and the children in drawing order, and gives `(accept [K], residual [V])`: accept[i] is the
probability of keeping child i once all before it were refused, residual the distribution of the
token when all were.

A distribution that can never be drawn from is all zeros, and so is what follows from it: then a
rule that reaches it by mistake loses mass, and shows. Compare rules by `emission`, which ignores
what is not reached. A child with q = 0 was never drawn; it is refused and changes nothing.
"""

import numpy as np

RSD_FIGURE_1 = [
    (0.5, 0.5, [1, 1, 1, 1, 1]), (0.1, 0.9, [0.2800, 0.2846, 1.8458, 0.2900, 1]),
    (0.2, 0.6, [0.6800, 0.7081, 1.5403, 0.7600, 1]),
    (0.3, 0.8, [0.6500, 0.6719, 1.5728, 0.7100, 1]),
    (0.25, 0.75, [0.6250, 0.6483, 1.5931, 0.6875, 1]),
    (0.05, 0.5, [0.5725, 0.5823, 1.6463, 0.5975, 1]),
]  # fmt: skip
"""RSD (Jeon et al. 2024), Fig. 1: acceptances of two children by draft and target."""


def _distribution(mass):
    """`mass` with sum 1, or all zeros where there is none."""
    total = mass.sum()
    return mass / total if total > 0 else np.zeros_like(mass)


def _ratio(p, q, token):
    """min(1, p/q) at one token, 0 where q is 0 (Leviathan et al. 2023, section 2.3)."""
    return min(1.0, p[token] / q[token]) if q[token] > 0 else 0.0


def _without(probs, token):
    """The distribution given that it is not `token`."""
    mass = np.array(probs)
    mass[token] = 0
    return _distribution(mass)


def deterministic_proposal(p, children):
    """Children chosen without regard to p's draw: keep x with p(x), else forget x, renormalise.

    Emits as if a token were drawn from p and kept as a child where it is one (what Token Recycling,
    prompt lookup and every deterministic tree need). A repeated child is refused the second time.
    """
    target = np.array(p, dtype=np.float64)
    accept = []
    for child in children:
        accept.append(target[child])
        target = _without(target, child)
    return np.array(accept), target


def recursive(p, q, children):
    """Children drawn from q without replacement (Jeon et al. 2024, Algorithm 1 and Theorem 3.1).

    Keep x with min(1, p/q); when refused p <- norm[p - q]^+, and q loses x.
    """
    target = np.array(p, dtype=np.float64)
    draft = np.array(q, dtype=np.float64)
    accept = []
    for child in children:
        accept.append(_ratio(target, draft, child))
        if draft[child] > 0:
            target = _distribution(np.maximum(target - draft, 0))
            draft = _without(draft, child)
    return np.array(accept), target


def multi_round(p, q, children):
    """Children drawn from q independently (SpecInfer, Miao et al. 2023): q stays as it is.

    Keep x with min(1, p/q); when refused p <- norm[p - q]^+. Equal children must be kept: leaving
    the second out changes the distribution they were drawn from.
    """
    target = np.array(p, dtype=np.float64)
    draft = np.array(q, dtype=np.float64)
    accept = []
    for child in children:
        accept.append(_ratio(target, draft, child))
        if draft[child] > 0:
            target = _distribution(np.maximum(target - draft, 0))
    return np.array(accept), target


def k_seq_gamma(p, q, num):
    """The best division of K-SEQ (SpecTr, Sun et al. 2023): the least valid gamma in [1, K].

    beta(g) = sum min(q, p/g) is one child's probability. g is valid where
    1 - (1 - beta)^K <= g beta; the left side falls with g and the right side grows, so bisection
    finds the least.
    """

    def is_valid(gamma):
        beta = np.minimum(q, p / gamma).sum()
        return 1 - (1 - beta) ** num <= gamma * beta

    if is_valid(1.0):
        return 1.0
    low, high = 1.0, float(num)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if is_valid(middle) else (middle, high)
    return high


def k_seq(p, q, children):
    """Children drawn from q independently, each kept with min(1, p / (gamma q)) (K-SEQ, SpecTr).

    With P = 1 - (1 - beta)^K the residual is (p - min(q, p/gamma) P / beta) / (1 - P).
    """
    p = np.array(p, dtype=np.float64)
    q = np.array(q, dtype=np.float64)
    gamma = k_seq_gamma(p, q, len(children))
    kept = np.minimum(q, p / gamma)
    beta = kept.sum()
    accept = np.array([_ratio(p / gamma, q, child) for child in children])
    if beta == 0:  # the supports are disjoint: nothing is ever kept
        return accept, p
    reach = 1 - (1 - beta) ** len(children)
    return accept, _distribution(np.maximum(p - kept * reach / beta, 0))


def emission(accept, residual, children):
    """The distribution [V] of the token emitted at the node, given its children, tried in order."""
    emitted = np.zeros(len(residual))
    reach = 1.0
    for child, probability in zip(children, accept, strict=True):
        emitted[child] += reach * probability
        reach = reach * (1 - probability)
    return emitted + reach * residual
