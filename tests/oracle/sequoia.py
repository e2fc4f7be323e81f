"""Sequoia's tree (Chen et al. 2024): all trees, and what they are worth.

acceptance[i] is the probability that a node's i-th child is the one that is kept, wherever the node
is. A shape is the tuple of the shapes of a node's children; a leaf is ().
"""


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
