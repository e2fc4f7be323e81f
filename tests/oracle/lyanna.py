"""Lyanna (Chen et al. 2026): token-info trees, re-sampling and fusion, from pseudocode.

What the paper leaves open is chosen as follows. Equal logits: the lower token id is the likelier.
Equal joint probabilities: the node that was made first, which is the shallower one, and within a
level the one in breadth-first order. The budget counts drafted nodes, the root apart.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class Node:
    """`Structure Node` of Algorithms 1 and 2, and what a test wants to know of it besides."""

    token: int
    probability: float = 1.0
    joint: float = 1.0
    children: list["Node"] = field(default_factory=list, repr=False)


def softmax(scores):
    scores = np.asarray(scores, np.float64)
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def build_subtree(logits, root, k, info):
    """`BUILDSUBTREE` of Algorithm 1: the whole tree, k + (N - 1) k^2 nodes below the root.

    Args:
        logits: [N, V], the raw ones of the levels in turn.
        root: the token at the root.
        k: branch number.
        info: [V] scores to add where a token is the parent.
    """
    top = Node(int(root))
    queue = [top]
    for level in logits:
        following = []
        for node in queue:
            probs = softmax(np.asarray(level, np.float64) + info(node.token))
            for token in np.argsort(-probs, kind="stable")[:k]:
                child = Node(int(token), probs[token], node.joint * probs[token])
                node.children.append(child)
                following.append(child)
        queue = sorted(following, key=lambda node: -node.joint)[:k]
    return top


def reusable(logits, accepted):
    """The rows that survive a verification (section 5.3): l_(a+2) .. l_N, N - a - 1 of them.

    Level a + 1 is where the target's own token, the bonus, took the place of the draft's.
    """
    return logits[accepted + 1 :]


def resample(remaining, truth, k, info, threshold):
    """Algorithm 2: a tree below the bonus token, the bonus alone if too few levels are left."""
    if len(remaining) > threshold:
        return build_subtree(remaining, truth, k, info)
    return Node(int(truth))


def listed(root):
    """(path of tokens below the root, joint probability) of each drafted node, breadth first.

    Within a level in the order in which the nodes were made: the children of likelier frontier
    nodes come first, although the frontier's nodes are elsewhere among their own siblings.
    """
    found, level = [], [((), root)]
    while level:
        # A level's frontier was sorted by joint probability when its children were made.
        ordered = sorted(level, key=lambda pair: -pair[1].joint)
        level = [((*path, c.token), c) for path, node in ordered for c in node.children]
        found += [(path, node.joint) for path, node in level]
    return found


def prune(nodes, budget):
    """The `budget` nodes of the largest joint probability (section 5.2), in their order."""
    ranked = sorted(range(len(nodes)), key=lambda index: (-nodes[index][1], index))
    return [nodes[index] for index in sorted(ranked[:budget])]


def token_info(token, embed, down, up, scale, eps, hot=None):
    """RMSNorm(E'(t)) (sections 4.1, 5.1 and 6.1): [V], zero where a token is not hot.

    Args:
        token: the parent.
        embed: [V, n] W_E of the target.
        down: [n, d] W_1.
        up: [d, H] W_2, a column for each hot token.
        scale: [H] of the norm.
        eps: of the norm.
        hot: the H hot tokens; None: all.
    """
    size = len(embed)
    hot = np.arange(size) if hot is None else np.asarray(hot)
    info = np.zeros(size)
    if token in hot:
        wide = np.asarray(embed, np.float64)[token] @ np.asarray(down, np.float64)
        wide = wide @ np.asarray(up, np.float64)
        info[hot] = wide / np.sqrt(np.mean(wide**2) + eps) * np.asarray(scale, np.float64)
    return info
