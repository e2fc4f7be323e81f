"""Block verification of a chain (Sun et al. 2024, Algorithm 2), and token by token.

Both get the distributions along one drafted chain X_1 .. X_L: p [L + 1, V], the target's after 0 ..
L of its tokens, and q [L, V], the draft's after 0 .. L - 1. They give `(stops [L + 1], residuals [L
+ 1, V])`: the probability that exactly i tokens are kept, and the distribution of the token that
follows then.

As in `rules`, a distribution that can never be drawn from is all zeros.
"""

from itertools import product

import numpy as np

from .rules import _distribution, _ratio


def block_probabilities(p, q, tokens):
    """h_1 .. h_L, and the joint ratios p_0 .. p_L that they are made of."""
    length = len(tokens)
    joint = [1.0]
    for i, token in enumerate(tokens):
        ratio = p[i][token] / q[i][token] if q[i][token] > 0 else 0.0
        joint.append(min(joint[-1] * ratio, 1.0))
    probabilities = []
    for i in range(1, length):
        surplus = np.maximum(joint[i] * p[i] - q[i], 0).sum()
        total = surplus + 1 - joint[i]
        # 0/0: the next token is drawn from the target's own distribution, and so are those after it
        # or one of them passes: what is said here is never asked.
        probabilities.append(surplus / total if total > 0 else 1.0)
    return np.array(probabilities + joint[length:] * (length > 0)), joint


def block(p, q, tokens):
    """Every token is tested; the last that passes is the last that is kept."""
    probabilities, joint = block_probabilities(p, q, tokens)
    residuals = [_distribution(np.maximum(joint[i] * p[i] - q[i], 0)) for i in range(len(tokens))]
    return last_passed(probabilities), np.array([*residuals, p[len(tokens)]])


def token_by_token(p, q, tokens):
    """The first token that fails is the first that is not kept (Leviathan et al. 2023)."""
    stops, reach = [], 1.0
    for i, token in enumerate(tokens):
        probability = _ratio(p[i], q[i], token)
        stops.append(reach * (1 - probability))
        reach = reach * probability
    residuals = [_distribution(np.maximum(p[i] - q[i], 0)) for i in range(len(tokens))]
    return np.array([*stops, reach]), np.array([*residuals, p[len(tokens)]])


def last_passed(probabilities):
    """The distribution [L + 1] of the last of L independent tests that passes, 0 if none does."""
    stops, above = [], 1.0
    for probability in probabilities[::-1]:
        stops.append(above * probability)
        above = above * (1 - probability)
    return np.array([above, *stops[::-1]])


def chains(p, q, num):
    """Every chain of `num` tokens, `(tokens, weight, p [num + 1, V], q [num, V])` of each.

    Args:
      p, q: dictionaries from the tokens so far, a tuple, to the distribution [V] of the next.
    """
    size = len(q[()])
    for tokens in product(range(size), repeat=num):
        target = np.array([p[tokens[:i]] for i in range(num + 1)])
        draft = np.array([q[tokens[:i]] for i in range(num)]).reshape(num, size)
        weight = np.prod([draft[i][token] for i, token in enumerate(tokens)])
        if weight > 0:
            yield tokens, weight, target, draft


def chain_distribution(verify, p, q, num):
    """The joint distribution [V] * (num + 1) of the emitted tokens, over all draws of a chain.

    A round that ends early is completed with tokens from p.
    """
    size = len(q[()])
    joint = np.zeros([size] * (num + 1))
    for tokens, weight, target, draft in chains(p, q, num):
        stops, residuals = verify(target, draft, tokens)
        for kept, (stop, residual) in enumerate(zip(stops, residuals, strict=True)):
            for rest in product(range(size), repeat=num + 1 - kept):
                whole = (*tokens[:kept], *rest)
                later = [p[whole[:i]][whole[i]] for i in range(kept + 1, num + 1)]
                joint[whole] += weight * stop * residual[rest[0]] * np.prod(later)
    return joint


def expected_kept(verify, p, q, num):
    """Drafted tokens kept per round, on average."""
    return sum(
        weight * (verify(target, draft, tokens)[0] @ np.arange(num + 1))
        for tokens, weight, target, draft in chains(p, q, num)
    )
