"""Traversal verification of a tree, from the leaves to the root (Weng et al. 2025).

The trees and models are those of trees.py. Nothing here draws: a traversal is a list of tests, each
of which is taken if all before it have failed.
"""

import numpy as np

from oracle.trees import children_of


def traversal(tree, p, q, without_replacement=True):
    """The tests in their order, `(prefix, probability, residual [V])`; the root's comes last.

    A node that is entered gets alpha = min(alpha of its parent * p(x) / q(x), 1). It is tested when
    nothing is left below it, and passes with alpha: the path to it is kept, and the next token is
    drawn from what p is there then. When it fails it is deleted, and its parent has

        surplus = [alpha p - q]^+        p <- norm[surplus]
        alpha <- sum(surplus) / (sum(surplus) + 1 - alpha)

    and, where children are drawn without replacement, q <- norm[q without x].
    """
    children, tests = children_of(tree), []

    def enter(prefix, alpha):
        target = np.array(p(prefix), np.float64)
        draft = np.array(q(prefix), np.float64)
        for token in children.get(prefix, ()):
            ratio = alpha * target[token] / draft[token] if draft[token] > 0 else 0.0
            enter((*prefix, token), min(ratio, 1.0))
            surplus = np.maximum(alpha * target - draft, 0)
            total = surplus.sum() + 1 - alpha
            if total <= 0:  # the child passes for certain: what comes now is never asked
                continue
            alpha = surplus.sum() / total
            target = surplus / surplus.sum() if surplus.sum() > 0 else target
            if without_replacement and draft[token] < 1:
                draft[token] = 0
                draft = draft / draft.sum()
        tests.append((prefix, alpha, target))

    enter((), 1.0)
    return tests


def traversal_distribution(tree, p, q, depth, without_replacement=True):
    """The joint distribution [V, ..., V] of the first `depth` tokens, exactly, as
    `walk_distribution`: what is missing behind a tree's tokens the target draws by itself."""
    joint = np.zeros((len(p(())),) * depth)

    def complete(prefix, weight):
        if len(prefix) >= depth:
            joint[prefix[:depth]] += weight
        elif weight > 0:
            for token, probability in enumerate(p(prefix)):
                complete((*prefix, token), weight * probability)

    left = 1.0
    for prefix, probability, residual in traversal(tree, p, q, without_replacement):
        for token, share in enumerate(residual):
            complete((*prefix, token), left * probability * share)
        left *= 1 - probability
    return joint
