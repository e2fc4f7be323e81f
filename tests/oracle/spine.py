"""Spine: tokens copied from the row's own text, and the likeliest tokens at branches off them.

A node's name is a letter for its copied tokens (a: one, b: two, ..) and a digit for each branch
step; here it is (copies, ranks), the root ((0, ())). Lines are `{token: [(candidate, p), ..]}`; a
token that is not in it has no line. The n-gram table is `{(before, token): line, (token,): line}`
of such lines, or empty.
"""

import numpy as np

MOST = 16
"""Tokens to which a match is counted."""


def matched(text, place):
    """How many tokens up to and including a place are those up to and including the last."""
    length = 0
    while length < min(MOST, place + 1) and text[place - length] == text[-1 - length]:
        length += 1
    return length


def best(text, newest=True):
    """(match, place) of the longest match, and of these the newest place; (0, None) without."""
    found = [(matched(text, place), place) for place in range(len(text) - 1)]
    longest = max((match for match, _ in found), default=0)
    places = [place for match, place in found if match == longest]
    return (longest, places[-1 if newest else 0]) if longest else (0, None)


def class_of(text, matches):
    """The number of the template for a text."""
    return sum(begin <= best(text)[0] for begin in matches)


def entries(template):
    """[(copies, ranks, rate)] of a template, in its order."""
    found = []
    for entry in template.split():
        name, rate = entry.split(":")
        copies = ord(name[0]) - ord("a") + 1 if name[0].isalpha() else 0
        ranks = tuple(int(digit) for digit in name[min(copies, 1) :])
        found.append((copies, ranks, int(rate)))
    return found


def candidates(lines, table, before, token):
    """{candidate: weight} after two tokens: what the line and the table say, added."""
    weights = dict(lines.get(token, []))
    for candidate, probability in table.get((before, token), table.get((token,), [])):
        weights[candidate] = weights.get(candidate, 0.0) + probability
    return {candidate: weight for candidate, weight in weights.items() if weight > 0}


def draft(text, lines, table, template, shape, noise=None, newest=True, leave_out=True):
    """[(token, parent, value)] by node, None where a node is absent.

    Args:
      template: of the text's class.
      shape: (nodes, passes, max_depth).
      noise: [depth, V] what is added to the log weights of the children of nodes at a depth.
      newest, leave_out: False for the oldest of equal matches, and for a candidate that is ranked
        though it is copied too: negative controls.
    """
    nodes, passes, max_depth = shape
    _, place = best(text, newest)

    def copied(number):
        start = place + 1
        return text[start + number % (len(text) - start)]

    fitting = [
        (copies, ranks, rate)
        for copies, ranks, rate in entries(template)
        if len(ranks) <= passes and copies + len(ranks) <= max_depth
    ]
    names, tree = [(0, ())], [(text[-1], -1, 1.0)]
    words = {(0, ()): (text[-2] if len(text) > 1 else -1, text[-1])}  # the last two on a path
    for copies, ranks, rate in fitting[:nodes]:
        above = (copies, ranks[:-1]) if ranks else (copies - 1, ())
        token = None
        if above in words and not ranks and place is not None:
            token = copied(copies - 1)
        elif above in words and ranks:
            weights = candidates(lines, table, *words[above])
            if len(ranks) == 1 and place is not None and leave_out:
                weights.pop(copied(copies), None)
            scores = {token: np.log(weight) for token, weight in weights.items()}
            if noise is not None:
                depth = copies + len(ranks) - 1
                scores = {token: score + noise[depth][token] for token, score in scores.items()}
            ranked = sorted(scores, key=lambda token: -scores[token])
            token = ranked[ranks[-1]] if ranks[-1] < len(ranked) else None
        tree.append(None if token is None else (token, names.index(above), rate / 1000))
        names.append((copies, ranks))
        if token is not None:
            words[copies, ranks] = words[above][1], token
    return tree + [None] * (nodes + 1 - len(tree))


def learnt(lines, tokens, valid, logits, path, k):
    """The lines after one verified tree: of nodes with one token one on the path, or the last."""
    chosen = {tokens[node]: node for node in range(len(tokens)) if valid[node]}
    chosen |= {tokens[node]: node for node in sorted(path)}
    after = dict(lines)
    for token, node in chosen.items():
        weights = np.exp(np.asarray(logits[node], np.float64) - np.max(logits[node]))
        likeliest = np.argsort(-weights, kind="stable")[:k].tolist()
        after[token] = [(each, weights[each] / weights.sum()) for each in likeliest]
    return after
