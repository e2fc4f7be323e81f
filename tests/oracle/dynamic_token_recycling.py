"""Token Recycling by probability: cells carry chances, the budget goes to the likeliest paths.

The matrix is `{token: [(candidate, mean probability), ..]}`; a token that is not in it was never
seen.
Chances are those of budgeted_merge.py's multinomial logit, with one drafter: each cell's
own odds, moved by a correction for its rank and its bin of odds.
"""

import heapq
import itertools
from math import exp, log

from .budgeted_merge import FARTHEST, MEMORY, START, STEP


def _kind(rank, odds):
    return 8 * min(rank, 7) + int(min(max(odds + 4, 0), 7))


def cells(line, corrections):
    """[(candidate, kind, chance)] of a line of the matrix."""
    none = max(1 - sum(chance for _, chance in line), 0.02)
    found = []
    for rank, (token, chance) in enumerate(line):
        odds = min(log(max(chance, 1e-3) / none), 4.0)
        kind = _kind(rank, odds)
        score = odds + corrections.get(None, 0.0) + corrections.get(kind, 0.0)
        found.append((token, kind, exp(score)))
    total = 1 + sum(weight for _, _, weight in found)
    return [(token, kind, weight / total) for token, kind, weight in found]


def grown(matrix, corrections, root, nodes, depth):
    """{path: worth} of the best `nodes` paths of at most `depth` tokens, best-first."""
    found = {}
    heap = [(-1.0, ())]
    while heap and len(found) <= nodes:
        value, path = heapq.heappop(heap)
        found[path] = -value
        if len(path) < depth:
            line = matrix.get(path[-1] if path else root, [])
            for token, _, chance in cells(line, corrections):
                heapq.heappush(heap, (value * chance, (*path, token)))
    del found[()]
    return found


def learnt(matrix, beliefs, text):
    """(corrections, curvatures) after the tokens text[1:] were emitted behind text[0]."""
    corrections, curvatures = beliefs
    slopes, bends = {}, {}
    for before, after in itertools.pairwise(text):
        for token, kind, chance in cells(matrix.get(before, []), corrections):
            for name in (None, kind):
                slopes[name] = slopes.get(name, 0.0) + (token == after) - chance
                bends[name] = bends.get(name, 0.0) + chance * (1 - chance)
    rounds = curvatures.get("rounds", 0)
    names = slopes.keys() | (curvatures.keys() - {"rounds"})
    new = {
        name: MEMORY * curvatures.get(name, START * MEMORY**rounds) + bends.get(name, 0.0)
        for name in names
    }
    moved = {
        name: corrections.get(name, 0.0) + STEP * slopes.get(name, 0.0) / (new[name] + START)
        for name in new
    }
    new["rounds"] = rounds + 1
    return {name: min(max(value, -FARTHEST), FARTHEST) for name, value in moved.items()}, new


def visited(matrix, tokens, distributions, memory, k):
    """The matrix after one verification; of nodes with one token the last decides."""
    new = dict(matrix)
    for token, probs in zip(tokens, distributions, strict=True):
        before = dict(matrix.get(token, []))
        likeliest = sorted(range(len(probs)), key=lambda t: -probs[t])[:k]
        old = memory if before else 0.0
        means = {t: old * before.get(t, 0.0) + (1 - old) * probs[t] for t in {*before, *likeliest}}
        new[token] = sorted(means.items(), key=lambda item: -item[1])[:k]
    return new
