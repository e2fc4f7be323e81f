"""Trees sampled from a draft model, and the distribution of what a walk over one emits.

A model is a function of the prefix, the tuple of tokens below the root (the root's is empty), that
gives a distribution [V]. A tree is `(tokens, parents)`, breadth-first, node 0 the root, siblings in
drawing order. Of equal siblings only the first has children: a prefix names one place in the tree.

No function here draws. What was drawn comes from outside, also as a function of the prefix, so that
`every_tree` can go through all that might have been drawn.
"""

import heapq
from collections import defaultdict

import numpy as np

ROOT = -1
"""Stands for the root's token, which nothing here reads."""


def tree_of(children):
    """The tree in which the node at a prefix has the children `children(prefix)`."""
    tokens, parents, prefixes = [ROOT], [-1], [()]
    for node, prefix in enumerate(prefixes):  # which grows on the way
        if prefix in prefixes[:node]:
            continue
        for token in children(prefix):
            tokens.append(int(token))
            parents.append(node)
            prefixes.append((*prefix, int(token)))
    return tokens, parents


def children_of(tree):
    """The input of `tree_of`, {prefix: child tokens in order}; equal trees, equal dicts.

    Breadth-first order is not needed; a parent has to come before its children.
    """
    tokens, parents = tree
    prefixes, place, children = [()], {(): 0}, {}
    for node in range(1, len(tokens)):
        above = prefixes[parents[node]]
        if place[above] != parents[node]:
            raise ValueError(f"node {node} hangs below the later of two equal siblings")
        children.setdefault(above, []).append(int(tokens[node]))
        prefixes.append((*above, int(tokens[node])))
        place.setdefault(prefixes[node], node)
    return children


# ---- sizes that are known before anything is drawn ---------------------------------------------


def rsd_c(orders, factors):
    """RSD with constant branching (Jeon et al. 2024, Algorithm 3).

    Args:
      orders: prefix -> tokens in the order in which they were drawn without replacement.
      factors: how many children per node of depth 0, 1, ... has; fewer where its order ends before.
    """
    return _branching(orders, factors)


def specinfer(draws, factors):
    """SpecInfer's expansion (Miao et al. 2023): rsd_c, but of independent draws, repeats kept."""
    return _branching(draws, factors)


def spectr(sequences):
    """SpecTr (Sun et al. 2023): K independent sequences; equal beginnings are one path.

    A node has one child for each sequence that reaches it, in the order of the sequences.
    """

    def reaching(prefix):
        return [s[len(prefix)] for s in sequences if tuple(s[: len(prefix)]) == prefix]

    return _branching(reaching, [len(sequences)] * len(sequences[0]))


def _branching(draws, factors):
    def children(prefix):
        return draws(prefix)[: factors[len(prefix)]] if len(prefix) < len(factors) else ()

    return tree_of(children)


# ---- DySpec: sizes that follow from what was drawn before ----------------------------------------


def dyspec_greedy(q, orders, budget):
    """DySpec's Algorithm 1 (Xiong et al. 2024): one by one, wherever the estimate is highest.

    A slot is a place for one more child, chosen by its value before its token is drawn. A tie goes
    to the slot that comes first breadth-first.

    Args:
      q: prefix -> distribution [V] of the draft model.
      orders: prefix -> tokens in the order in which they are drawn from q without replacement.
      budget: most drafted tokens, the root not counted.
    """
    children = {}
    slots = []

    def offer(prefix, drawn, ranks):
        value = _slot_value(q, prefix, drawn)
        if value > 0:  # else every token is drawn: the paper would push an empty residual
            heapq.heappush(slots, (-value, len(ranks), ranks, prefix, drawn))

    offer((), (), (0,))
    for _ in range(budget):
        # Never empty: the slot below what was drawn last is as probable as that is.
        _, _, ranks, prefix, earlier = heapq.heappop(slots)
        token = orders(prefix)[len(earlier)]
        drawn = (*earlier, token)
        children[prefix] = drawn
        offer(prefix, drawn, (*ranks[:-1], len(drawn)))
        offer((*prefix, token), (), (*ranks, 0))
    return tree_of(lambda prefix: children.get(prefix, ()))


def dyspec_threshold(q, orders, threshold, budget):
    """DySpec's Algorithm 2 (Xiong et al. 2024): layer by layer, all slots above the threshold.

    Line 9 must read v_i > t: as printed nothing is ever drawn. The cap of the experiments, which
    the algorithm lacks, ends it breadth-first: it sees how much was drawn, never what comes.

    Args:
      q, orders, budget: as in `dyspec_greedy`.
      threshold: a slot of just this value is not filled.
    """
    children = {}
    count = 0
    layer = [()]
    while layer:
        deeper = []
        for prefix in layer:
            drawn = ()
            while _slot_value(q, prefix, drawn) > threshold and count < budget:
                drawn = (*drawn, orders(prefix)[len(drawn)])
                count += 1
            children[prefix] = drawn
            deeper += [(*prefix, token) for token in drawn]
        layer = deeper
    return tree_of(lambda prefix: children.get(prefix, ()))


def _slot_value(q, prefix, drawn):
    """The estimated probability that the next child of `prefix` is tried (eqs. 9-11).

    The node is reached with the product of its path, and all `drawn` before are refused. The
    algorithm multiplies renormalised residuals, which telescope to this. The model is not asked
    for the distribution below a node until that node's second child: leaves cost no forward.
    """
    reached = np.prod([q(prefix[:depth])[token] for depth, token in enumerate(prefix)])
    return reached * np.delete(q(prefix), drawn).sum() if drawn else reached


# ---- exact sums ----------------------------------------------------------------------------------


def every_tree(build, draws):
    """All trees that may come out, as `[(tree, probability)]`, equal trees once.

    Args:
      build: called with a function prefix -> what was drawn there, gives a tree.
      draws: prefix -> [(what may be drawn there, probability)].
    """
    probabilities = defaultdict(float)

    class Unknown(Exception):
        pass

    def go(known, weight):
        def ask(prefix):
            if prefix not in known:
                raise Unknown(prefix)
            return known[prefix]

        try:
            tokens, parents = build(ask)
        except Unknown as unknown:
            (prefix,) = unknown.args
            for drawn, probability in draws(prefix):
                go({**known, prefix: drawn}, weight * probability)
        else:
            probabilities[tuple(tokens), tuple(parents)] += weight

    go({}, 1.0)
    return list(probabilities.items())


def walk_distribution(tree, rule, p, q, depth):
    """The exact joint distribution [V, ..., V] of the first `depth` tokens from a tree.

    At each node the rule's children are tried in order; the walk goes on below the one kept, or
    emits a token of the residual and ends. What is missing then, the target draws by itself.

    Args:
      tree: `(tokens, parents)`.
      rule: (p [V], q [V], children) -> (accept [K], residual [V]), see rules.py.
      p, q: prefix -> distribution [V], of the target and of what the node's children were drawn
      from.
      depth: tokens; the tree may be deeper or shallower.
    """
    children = children_of(tree)
    probs = np.zeros((len(p(())),) * depth)

    def complete(prefix, weight):
        if len(prefix) == depth:
            probs[prefix] += weight
        elif weight > 0:
            for token, probability in enumerate(p(prefix)):
                complete((*prefix, token), weight * probability)

    def visit(prefix, weight):
        if len(prefix) == depth:
            probs[prefix] += weight
            return
        drawn = children.get(prefix, [])
        accept, residual = rule(p(prefix), q(prefix), drawn)
        left = weight
        for token, probability in zip(drawn, accept, strict=True):
            visit((*prefix, token), left * probability)
            left = left * (1 - probability)
        for token, probability in enumerate(residual):
            complete((*prefix, token), left * probability)

    visit((), 1.0)
    return probs
