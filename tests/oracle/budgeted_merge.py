"""Drafters under one budget of nodes, by paths: see the opening words of
`jspec.drafters.ensemble.budgeted_merge`.

A drafter's tree is `{path: estimate or None}`, the path a tuple of tokens below the root, siblings
in order. Nodes are paths from the start, so that nothing has to be united.
"""

from math import exp, inf, log, log1p

UNSEEN = -4.0
STEP, START, MEMORY, FARTHEST = 0.5, 2.0, 0.99, 12.0


def fresh():
    """(corrections, curvatures): by (drafter, kind), and by None for every child."""
    return {}, {}


def claims(tree):
    """{path: (claim, kind)} of one drafter's nodes."""
    found = {}
    for path, estimate in tree.items():
        siblings = [other for other in tree if other[:-1] == path[:-1]]
        if estimate is None:
            rank = min(siblings.index(path), 7)
            kind = 8 * min(len(path) - 1, 7) + rank
            found[path] = (log(2) - 2 * log1p(rank) - UNSEEN, kind)
            continue
        above = tree[path[:-1]] if len(path) > 1 else 1.0

        def share(node, above=above):
            return min(max(tree[node] / max(above, 1e-9), 1e-3), 1.0)

        none = max(1 - sum(map(share, siblings)), 0.02)
        odds = min(log(share(path) / none), 4.0)
        kind = 16 * min(len(path) - 1, 3) + int(min(max((odds + 4) * 2, 0), 15))
        found[path] = (odds - UNSEEN, kind)
    return found


def probabilities_of(forest, corrections):
    """{path: probability that it is taken if its parent is} over all drafters' trees."""
    said = [claims(tree) for tree in forest]
    weights = {}
    for path in dict.fromkeys(path for tree in forest for path in tree):
        score = UNSEEN + corrections.get(None, 0.0)
        for drafter, known in enumerate(said):
            if path in known:
                claim, kind = known[path]
                score += claim + corrections.get((drafter, kind), 0.0)
        weights[path] = exp(score)
    return {
        path: weight / (1 + sum(w for other, w in weights.items() if other[:-1] == path[:-1]))
        for path, weight in weights.items()
    }


def value(probability):
    """{path: product along it}."""
    found = {}
    for path in sorted(probability, key=len):
        found[path] = probability[path] * found.get(path[:-1], 1.0)
    return found


def kept(value, nodes):
    """The best paths, and the value of the last of them and of the first that is left out."""
    order = sorted(value, key=lambda path: -value[path])
    last = value[order[nodes - 1]] if len(order) >= nodes else 0.0
    return set(order[:nodes]), last, value[order[nodes]] if len(order) > nodes else -inf


def learnt(beliefs, rows):
    """Beliefs after a round; `rows` has (forest, what was emitted) for each row of the batch."""
    corrections, curvatures = beliefs
    slopes, bends = {}, {}
    for forest, emitted in rows:
        said = [claims(tree) for tree in forest]
        for path, probability in probabilities_of(forest, corrections).items():
            if len(path) > len(emitted) or path[:-1] != tuple(emitted[: len(path) - 1]):
                continue  # nobody knows what follows its parent
            kinds = [(d, known[path][1]) for d, known in enumerate(said) if path in known]
            for name in (None, *kinds):
                taken = path == tuple(emitted[: len(path)])
                slopes[name] = slopes.get(name, 0.0) + taken - probability
                bends[name] = bends.get(name, 0.0) + probability * (1 - probability)
    names = slopes.keys() | curvatures.keys()
    # What was never met has the start's curvature, fading: written out where it is first met.
    rounds = curvatures.get("rounds", 0)
    new = {
        name: MEMORY * curvatures.get(name, START * MEMORY**rounds) + bends.get(name, 0.0)
        for name in names - {"rounds"}
    }
    moved = {
        name: corrections.get(name, 0.0) + STEP * slopes.get(name, 0.0) / (new[name] + START)
        for name in new
    }
    new["rounds"] = rounds + 1
    return {name: min(max(value, -FARTHEST), FARTHEST) for name, value in moved.items()}, new
