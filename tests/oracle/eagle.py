"""EAGLE's trees (Li et al. 2024): EAGLE-1's static one, EAGLE-2's expansion and rerank.

Both are functions of the draft's scores alone: `scores(path)` gives the [V] logits of what follows
the tokens `path` below the root. Equal scores: the lower token id, and the node made first.
"""

import numpy as np

_PATHS = """
0 1 2 3
00 01 02 10 11 20 21 30
000 001 002 010 011 020 021 100
0000 0001 0002
00000 00001
"""

TEMPLATE = [tuple(int(rank) for rank in path) for path in _PATHS.split()]
"""EAGLE-1's tree: each node by its path, rank after rank below the root, in BFS order."""

assert len(set(TEMPLATE)) == 25
assert all(path[:-1] in TEMPLATE for path in TEMPLATE if len(path) > 1)


def log_distribution(scores):
    scores = np.asarray(scores, np.float64)
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def _top(values, k):
    return np.argsort(-np.asarray(values), kind="stable")[:k]


def static(scores, template=TEMPLATE):
    """(path of tokens, joint log-probability) of each node of a template, in its order."""
    made = {(): ((), 0.0)}
    for ranks in template:
        path, joint = made[ranks[:-1]]
        probs = log_distribution(scores(path))
        token = int(_top(probs, ranks[-1] + 1)[-1])
        made[ranks] = ((*path, token), joint + probs[token])
    return [made[ranks] for ranks in template]


def expand(scores, depth, k):
    """All candidates of EAGLE-2's expansion, in the order in which they are made.

    Level 1 holds the k likeliest tokens; then, `depth` times, each of the k frontier nodes gets its
    k likeliest children, and the k best of these by joint probability are the next frontier. So
    there are k + depth k^2 candidates, depth + 1 levels of them.
    """

    def children(path, joint):
        probs = log_distribution(scores(path))
        return [((*path, int(token)), joint + probs[token]) for token in _top(probs, k)]

    frontier = children((), 0.0)
    made = list(frontier)
    for _ in range(depth):
        level = [child for path, joint in frontier for child in children(path, joint)]
        made += level
        frontier = [level[index] for index in _top([joint for _, joint in level], k)]
    return made


def rerank(candidates, total):
    """The `total` - 1 candidates of largest joint probability, in the order they were made.

    `total` counts the root, as the published `total_token` does.
    """
    best = _top([joint for _, joint in candidates], total - 1)
    return [candidates[index] for index in sorted(best)]
