"""N-gram tables: `{(before, token): line, (token,): line}` of lines `[(candidate, p), ..]`."""

import numpy as np


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


def of_vocabulary(logits, k):
    """The likeliest tokens and their mean probabilities, of logits [prefixes, V, V] in float64."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    means = (weights / weights.sum(-1, keepdims=True)).mean(0)
    best = np.argsort(-means, axis=-1, kind="stable")[:, :k]
    return best, np.take_along_axis(means, best, axis=-1)
