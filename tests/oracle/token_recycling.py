"""Token Recycling (Luo et al. 2024, arXiv 2408.08696), with the published tree and rules.

Where paper and published code differ the code is followed, because its figures are the paper's: 80
drafted nodes besides the root, where the appendix counts the root among the 80.
"""

import numpy as np

from .greedy import truncate

_PATHS = """
0 1 2 3 4 5 6 7
00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70
000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070 100 101 110 200 300 400 500
0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000
00000 00001 00002 00010 00020 00100 01000 10000
000000 000001 000100
"""

TEMPLATE = [tuple(int(rank) for rank in path) for path in _PATHS.split()]
"""The tree of Fig. 5: each node by its path, rank after rank below the root, in BFS order."""

_LEVELS = [sum(len(path) == depth for path in TEMPLATE) for depth in range(1, 7)]
assert _LEVELS == [8, 21, 25, 15, 8, 3] and len(set(TEMPLATE)) == 80


def top_candidates(logits, k):
    """argtopk (section 2.1): ids of the k largest logits, largest first, lower id first on ties."""
    return [int(token) for token in np.argsort(-np.asarray(logits), kind="stable")[:k]]


def token_recycling_tree(matrix, template, root, pairs=None, before=None):
    """Draft tree (section 3.2, Algorithm 1): `(tokens, parents)` in BFS order, node 0 the root.

    A node's token is entry `rank` of its parent's row. Rows that were never written hold zeros, and
    a zero is drafted like any other token, so siblings may repeat. With `pairs`, which the paper
    has not, the row of the parent and the token before it counts where there is one: `before` the
    root, {(before, token): row}.
    """
    nodes = [(), *template]
    tokens = [int(root)]
    above = [before]
    parents = [-1]
    for path in template:
        parent = nodes.index(path[:-1])
        parents.append(parent)
        row = (pairs or {}).get((above[parent], tokens[parent]), matrix[tokens[parent]])
        tokens.append(int(row[path[-1]]))
        above.append(tokens[parent])
    return tokens, parents


def token_recycling_update(matrix, tokens, topk):
    """The matrix after one verification (section 3.3): row of node i's token <- topk[i] [k].

    Written node by node in BFS order, so the last node that holds a token decides its row (the
    paper's Fig. 3c finds that order best; its CUDA scatter leaves the order open).
    """
    updated = np.array(matrix)
    for token, candidates in zip(tokens, topk, strict=True):
        updated[token] = candidates
    return updated


def _lineage(parents, node):
    """Nodes from the first below the root down to `node`."""
    if parents[node] < 0:
        return []
    return [*_lineage(parents, parents[node]), node]


def _longest_match(tokens, parents, argmaxes):
    """The matched part of the best root-to-leaf path, the first on ties (section 3.3)."""
    best = []
    for leaf in range(len(tokens)):
        if leaf in parents:
            continue
        matched = []
        for node in _lineage(parents, leaf):
            if tokens[node] != argmaxes[parents[node]]:
                break
            matched.append(node)
        if len(matched) > len(best):
            best = matched
    return best


def token_recycling(
    next_logits, prompt, limit, eos=(), k=8, template=TEMPLATE, matrix=None,
    update_on_prefill=False, pairs=None,
):  # fmt: skip
    """A whole greedy decode: `(tokens, steps, matrix, histogram)`.

    The last prompt token is the first root; from then on the bonus token is. One step is one
    forward pass over the tree: the tree's logits verify the draft, and the logits of all its nodes,
    accepted or not, update the matrix.

    Args:
      next_logits, prompt, limit, eos: as in `greedy`. Called once per node, equal paths included;
        a dear one is best memoised by its caller.
      k: candidates per row of the matrix.
      template: paths in BFS order, every parent before its children.
      matrix: [V, k] from an earlier call (hot start, section 3.1); None is all zeros. Not modified.
      pairs: rows of pairs of tokens from an earlier call, filled in place by the nodes that fill
        the matrix; None: there are none, as in the paper.
      update_on_prefill: whether the prompt updates the matrix, position by position, the last
        token left out: that one is the first root. Not in the paper.

    Returns:
      tokens: emitted, cut at the end token or the limit.
      steps: forward passes after the prefill.
      matrix: [V, k], for the next call.
      histogram: entry n counts the steps that emitted n tokens, bonus included and after the cut,
        so sum(n * histogram[n]) is len(tokens) and sum(histogram) is steps; entry 0 stays 0.
    """
    prompt = [int(token) for token in prompt]
    if matrix is None:
        matrix = np.zeros((len(next_logits(prompt)), k), dtype=np.int64)
    if update_on_prefill:
        seen = [top_candidates(next_logits(prompt[: i + 1]), k) for i in range(len(prompt) - 1)]
        matrix = token_recycling_update(matrix, prompt[:-1], seen)

    emitted = []
    histogram = [0] * (max(map(len, template), default=0) + 2)
    ended = limit == 0
    while not ended:
        context = prompt + emitted
        before = context[-2] if len(context) > 1 else None
        tokens, parents = token_recycling_tree(matrix, template, context[-1], pairs, before)
        logits = []
        for node in range(len(tokens)):
            path = [tokens[above] for above in _lineage(parents, node)]
            logits.append(next_logits(context + path))
        argmaxes = [int(np.argmax(row)) for row in logits]

        matched = _longest_match(tokens, parents, argmaxes)
        bonus = argmaxes[matched[-1] if matched else 0]
        confirmed = [tokens[node] for node in matched] + [bonus]
        kept, ended = truncate(confirmed, limit - len(emitted), eos)
        emitted = emitted + kept
        histogram[len(kept)] += 1

        if not ended:  # the published code leaves its loop before
            # The paper leaves open which of several nodes of one token writes last. Nodes of one
            # path (siblings of a line that holds a token twice) are one node, the first.
            nodes = range(len(tokens))
            paths = [tuple(tokens[a] for a in _lineage(parents, node)) for node in nodes]
            first = [node for node, path in enumerate(paths) if paths.index(path) == node]
            topk = [top_candidates(logits[node], k) for node in first]
            matrix = token_recycling_update(matrix, [tokens[node] for node in first], topk)
            if pairs is not None:
                above = [before, *(tokens[parent] for parent in parents[1:])]
                pairs |= {
                    (above[node], tokens[node]): row
                    for node, row in zip(first, topk, strict=True)
                    if above[node] is not None
                }

    return emitted, sum(histogram), np.array(matrix), histogram
