"""Medusa (Cai et al. 2024): the heads, their Cartesian tree, a whole greedy decode.

The tree is `mc_sim_7b_63` of the authors' code, which their figures are of.
"""

import numpy as np

from .greedy import truncate

TEMPLATE = [
    (0,), (0, 0), (1,), (0, 1), (2,), (0, 0, 0), (1, 0), (0, 2), (3,), (0, 3), (4,), (0, 4),
    (2, 0), (0, 5), (0, 0, 1), (5,), (0, 6), (6,), (0, 7), (0, 1, 0), (1, 1), (7,), (0, 8),
    (0, 0, 2), (3, 0), (0, 9), (8,), (9,), (1, 0, 0), (0, 2, 0), (1, 2), (0, 0, 3), (4, 0),
    (2, 1), (0, 0, 4), (0, 0, 5), (0, 0, 0, 0), (0, 1, 1), (0, 0, 6), (0, 3, 0), (5, 0), (1, 3),
    (0, 0, 7), (0, 0, 8), (0, 0, 9), (6, 0), (0, 4, 0), (1, 4), (7, 0), (0, 1, 2), (2, 0, 0),
    (3, 1), (2, 2), (8, 0), (0, 5, 0), (1, 5), (1, 0, 1), (0, 2, 1), (9, 0), (0, 6, 0),
    (0, 0, 0, 1), (1, 6), (0, 7, 0),
]  # fmt: skip
"""Each node by its path of ranks, in the authors' order."""

assert len(set(TEMPLATE)) == 63
assert max(map(len, TEMPLATE)) == 4


def scores(hidden, blocks, matrices):
    """[K, V]: head i is a chain of residual blocks x + SiLU(W x + b), then a matrix [V, E].

    Args:
      hidden: [E], the target's state at position j; head i's scores are of the token at j + 2 + i.
      blocks: per head a list of (W [E, E], b [E]).
      matrices: per head [V, E].
    """
    found = []
    for chain, matrix in zip(blocks, matrices, strict=True):
        x = np.asarray(hidden, np.float64)
        for weight, bias in chain:
            inner = weight @ x + bias
            x = x + inner / (1 + np.exp(-inner))
        found.append(matrix @ x)
    return np.array(found)


def tree(heads, template=TEMPLATE):
    """{path of ranks: (path of tokens, product of the heads' probabilities)}, scores [K, V].

    A node's token is that of its last rank by the head of its depth, whatever is above it.
    """
    found = {}
    for ranks in template:
        tokens, value = [], 1.0
        for head, rank in zip(heads, ranks, strict=False):
            probs = np.exp(head - head.max())
            probs /= probs.sum()
            token = int(np.argsort(-probs, kind="stable")[rank])
            tokens.append(token)
            value *= probs[token]
        found[ranks] = tuple(tokens), value
    return found


def decode(next_logits, state, heads, prompt, limit, template=TEMPLATE):
    """A whole greedy decode: (tokens, tokens emitted in each round).

    Args:
      next_logits: [V] of what follows some tokens.
      state: [E] of the last of some tokens.
      heads: scores [K, V] from a state.
      prompt, limit: as in `greedy`.
    """
    emitted, rounds = [], []
    while len(emitted) < limit:
        context = [*prompt, *emitted]
        drafted = set()
        if len(context) > 1:
            # The last token is the root: no forward pass has seen it yet.
            known = tree(heads(state(context[:-1])), template)
            drafted = {tokens for tokens, _ in known.values()}
        path = []
        while True:
            token = int(np.argmax(next_logits([*context, *path])))
            path.append(token)
            if tuple(path) not in drafted:
                break
        kept, _ = truncate(path, limit - len(emitted), ())
        emitted += kept
        rounds.append(len(kept))
    return emitted, rounds
