"""Sequoia's tree (Chen et al. 2024): its dynamic programme in loops, and all trees.

acceptance[i] is the probability that a node's i-th child is the one that is kept, wherever the node
is. A shape is the tuple of the shapes of a node's children; a leaf is ().
"""


def sequoia_table(acceptance, nodes, levels):
    """T[m][l]: the most tokens to expect of a tree of m nodes, root included, and l levels.

    LLM as in the published code, from U[m][l][b], the best with just b children at the root:

        U[1][l][0] = 1
        U[m][l][b] = max over y of U[y][l][b-1] + acceptance[b] T[m-y][l-1]

    Here the root is a level of its own. -inf where no tree has that many nodes.
    """
    none = float("-inf")
    best = [[none] * (levels + 1) for _ in range(nodes + 1)]
    for level in range(1, levels + 1):
        exact = [[none] * (len(acceptance) + 1) for _ in range(nodes + 1)]
        exact[1][0] = 1.0
        for m in range(2, nodes + 1):
            for b in range(1, len(acceptance) + 1):
                exact[m][b] = max(
                    exact[y][b - 1] + acceptance[b - 1] * best[m - y][level - 1]
                    if best[m - y][level - 1] > none
                    else none
                    for y in range(1, m)
                )
        for m in range(1, nodes + 1):
            best[m][level] = max(exact[m])
    return best


def sequoia_shapes(nodes, depth, width):
    """Every shape of so many nodes, at most `depth` edges deep, with at most `width` siblings."""
    if nodes == 1:
        yield ()
    elif depth > 0:
        yield from _forests(nodes - 1, depth - 1, width, width)


def _forests(nodes, depth, width, siblings):
    if nodes == 0:
        yield ()
    elif siblings > 0:
        for size in range(1, nodes + 1):
            for first in sequoia_shapes(size, depth, width):
                for others in _forests(nodes - size, depth, width, siblings - 1):
                    yield (first, *others)


def sequoia_tokens(acceptance, shape):
    """The tokens to expect of a shape: the node itself, and each child's if it is kept."""
    return tokens_by_depth([acceptance], shape)


def tokens_by_depth(rows, shape):
    """The same where `rows` has an acceptance vector for each depth, the last for all deeper."""
    below = rows[1:] or rows
    return 1 + sum(
        probability * tokens_by_depth(below, child)
        for probability, child in zip(rows[0], shape, strict=False)
    )
