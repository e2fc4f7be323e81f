"""Token Recycling by probability: cells hold probabilities, the likeliest paths get nodes.

The matrix is `{token: [(candidate, mean probability), ..]}`; a token that is not in it was never
seen. The n-gram table is `{(before, token): line, (token,): line}` of such lines, or empty.
Probabilities are those of budgeted_merge.py's multinomial logit, with the matrix and the table as
its
drafters: each line's own odds, moved by a correction for its rank and its bin of odds, and for the
table's by its order too. Where tokens are drawn, the odds of each candidate are multiplied by exp(T
(G - 0.5772)), with the noise G that decides there: `noise` holds these log odds by token, a list
for each step from the root on, and nothing in greedy decoding.
"""

import heapq
from math import exp, log

from .budgeted_merge import FARTHEST, MEMORY, START, STEP


def _kind(rank, odds):
    return 8 * rank + int(min(max(odds + 4, 0), 7))


def _said(line, ranks):
    """{candidate: (kind, odds)} of what one source says."""
    none = max(1 - sum(probability for _, probability in line), 0.02)
    found = {}
    for rank, (token, probability) in enumerate(line):
        odds = min(log(max(probability, 1e-3) / none), 4.0)
        found[token] = (_kind(ranks[min(rank, len(ranks) - 1)], odds), odds)
    return found


def cells(matrix, table, before, token, corrections, noise=None):
    """[(candidate, kinds, probability)] after two tokens; kind 64 + j is kind j of the table."""
    of_matrix = _said(matrix.get(token, []), range(8))
    pair = table.get((before, token))
    line = table.get((token,), []) if pair is None else pair
    of_table = _said(line, range(4) if pair is None else range(4, 8))
    found = []
    for candidate in {**of_matrix, **of_table}:
        said = [
            (kind + first, odds)
            for first, source in ((0, of_matrix), (64, of_table))
            for kind, odds in [source.get(candidate, (None, 0.0))]
            if kind is not None
        ]
        # Each source raises a candidate from odds of -4 to its own.
        score = -4 + corrections.get(None, 0.0)
        score += sum(odds + 4 + corrections.get(kind, 0.0) for kind, odds in said)
        found.append((candidate, [kind for kind, _ in said], exp(score)))
    if noise is not None:
        found = [(token, kinds, weight * exp(noise[token])) for token, kinds, weight in found]
    total = 1 + sum(weight for _, _, weight in found)
    return [(candidate, kinds, weight / total) for candidate, kinds, weight in found]


def grown(matrix, table, corrections, text, nodes, depth, k, noise=()):
    """{path: value} of the best `nodes` paths of at most `depth` tokens, best-first.

    text: the last two tokens, of which the last is the root; of a token k candidates count.
    """
    found = {}
    heap = [(-1.0, ())]
    while heap and len(found) <= nodes:
        value, path = heapq.heappop(heap)
        found[path] = -value
        if len(path) < depth:
            before, last = (*text, *path)[-2:]
            here = noise[len(path)] if len(noise) else None
            offered = cells(matrix, table, before, last, corrections, here)
            for token, _, probability in sorted(offered, key=lambda one: -one[2])[:k]:
                heapq.heappush(heap, (value * probability, (*path, token)))
    del found[()]
    return found


def learnt(matrix, table, beliefs, text, noise=()):
    """(corrections, curvatures) after the tokens text[2:] were emitted behind text[:2]."""
    corrections, curvatures = beliefs
    slopes, bends = {}, {}
    for step, (before, last, after) in enumerate(zip(text, text[1:], text[2:], strict=False)):
        here = noise[step] if len(noise) else None
        for token, kinds, probability in cells(matrix, table, before, last, corrections, here):
            for name in (None, *kinds):
                slopes[name] = slopes.get(name, 0.0) + (token == after) - probability
                bends[name] = bends.get(name, 0.0) + probability * (1 - probability)
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


def tabulated(rows, distributions, k):
    """The n-gram table of rows of tokens and of the distributions [(token, p), ..] after each."""
    visits, sums = {}, {}
    for row, after in zip(rows, distributions, strict=True):
        for place, distribution in enumerate(after):
            single = (row[place],)
            for key in (single, (row[place - 1], *single))[: 1 + (place > 0)]:
                visits[key] = visits.get(key, 0) + 1
                line = sums.setdefault(key, {})
                for token, probability in distribution:
                    line[token] = line.get(token, 0.0) + probability
    means = {key: {t: s / visits[key] for t, s in line.items()} for key, line in sums.items()}
    table = {}
    for key, line in means.items():
        if len(key) == 2:
            backed, n = means[key[1:]], visits[key]
            line = {t: (n * p + backed.get(t, 0.0)) / (n + 1) for t, p in line.items()}
        table[key] = sorted(line.items(), key=lambda item: (-item[1], item[0]))[:k]
    return table
