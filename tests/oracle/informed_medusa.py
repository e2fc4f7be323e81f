"""Medusa's heads with token info from a dictionary of Token Recycling's lines, in float64.

The combination is jspec's own. The tree is one that grows from the best nodes of each level.
"""

import numpy as np

RATES = np.array([0.6, 0.12, 0.05, 0.035, 0.025, 0.02, 0.015, 0.015])
"""The probability of a line's token, by rank."""
ELSEWHERE = 1e-4
"""The probability of every token that a line does not hold, where there is a head."""


def distribution(scores, level, line, strength, size):
    """Probabilities [V] of the children of a node at this depth.

    Args:
      scores: [K, V], of all heads.
      level: 0 is the root's.
      line: likely tokens after the node's, or None.
      strength: the power of the line.
      size: V.
    """
    alone = level >= len(scores)
    rates = np.full(size, 1.0)
    if line is not None:
        known = RATES[: len(line)]
        rates[:] = (1 - known.sum()) / size if alone else ELSEWHERE
        rates[np.asarray(line)] = known
    logits = np.zeros(size) if alone else np.float64(scores[level])
    logits = logits + (1.0 if alone else strength) * np.log(rates)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def tree(scores, line_after, before, root, nodes, depth, beam, strength):
    """{path of tokens: product of probabilities}, of the `nodes` likeliest.

    Args:
      scores: [K, V], of all heads.
      line_after: (token before, token) -> likely tokens, or None.
      before, root: the last two tokens of the text.
      nodes, depth, beam: of the tree; the best `beam` of a level get `beam` children each.
      strength: the power of lines.
    """
    found, frontier = {}, {(): 1.0}
    for level in range(depth):
        children = {}
        for path, value in frontier.items():
            last = (before, root, *path)[-2:]
            probs = distribution(scores, level, line_after(*last), strength, scores.shape[1])
            best = np.argsort(-probs, kind="stable")[:beam]
            children |= {(*path, int(token)): value * probs[token] for token in best}
        found |= children
        frontier = dict(sorted(children.items(), key=lambda child: -child[1])[:beam])
    return dict(sorted(found.items(), key=lambda node: -node[1])[:nodes])
