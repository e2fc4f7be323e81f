"""Sequoia's dynamic program (Chen et al. 2024): the best tree for given acceptance.

acceptance[i] is the probability that, of a node's children in drawing order, child i is the one
that is kept; what is missing to 1 is the probability that none is. A node is then reached with the
product along its path, and the sum over all nodes is the number of tokens that a round is expected
to emit. A tree's size is its drafted nodes and its depth the levels below the root, here as in all
of jspec: the root is never counted. (Sequoia counts it in both.)

Everything runs once, before anything is traced.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number
from jspec.tree import Template

Acceptance = Sequence[float] | Float[np.ndarray, "L K"]

_TOLERANCE = 1e-6
"""The largest excess over 1 that a sum of measured probabilities may have."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best trees of up to M drafted nodes and D levels, from one run of the programme."""

    tokens: Float[np.ndarray, "M+1 D+1"]
    """The tokens [m, d] that a round is expected to emit with the best tree of m drafted nodes
    in at most d levels; -inf where there is no such tree."""
    shares: Int[np.ndarray, "D+1 K M+2"]
    """The number [d, k, n] of n nodes that go to child k of a node and its descendants, if the
    rest goes to later siblings and all are in the d levels below the node. Inside the table a
    tree's own root counts as one of its nodes."""

    def template(self, num_speculative_tokens: int, max_depth: int) -> Template:
        """Returns the tree behind `tokens[num_speculative_tokens, max_depth]`.

        Args:
            num_speculative_tokens: drafted nodes; the root is not counted.
            max_depth: most levels below the root.

        Raises:
            InputError: if that lies outside the table, or there is no such tree.
        """
        most_nodes, most_levels = (size - 1 for size in self.tokens.shape)
        end = "where the table ends; solve for more"
        check_integer("num_speculative_tokens", num_speculative_tokens, 0, most_nodes, end)
        check_integer("max_depth", max_depth, 1, most_levels, end)
        if self.tokens[num_speculative_tokens, max_depth] == -np.inf:
            limit = np.flatnonzero(np.isfinite(self.tokens[:, max_depth])).max()
            raise InputError(
                f"num_speculative_tokens is {num_speculative_tokens}, but {self.shares.shape[1]} "
                f"children a node in {max_depth} levels make at most {limit}; ask for fewer, or "
                "pass a longer acceptance vector or more levels"
            )
        return Template(tuple(self._paths(num_speculative_tokens, max_depth, ())))

    def _paths(self, below: int, depth: int, above: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yields the paths of the `below` nodes that hang from the node with the path `above`."""
        rank = 0
        while below:
            share = int(self.shares[depth, rank, below])
            yield (*above, rank)
            yield from self._paths(share - 1, depth - 1, (*above, rank))
            below, rank = below - share, rank + 1


def solve(acceptance: Acceptance, num_speculative_tokens: int, max_depth: int) -> Optimum:
    """Runs the programme (Chen et al. 2024, section 3.1): O(M^2 D K) for K children per node.

    Args:
        acceptance: probability that the child of each rank is the one that is kept; or such a row
            for each depth of the parent, the root's first and the last for all that are deeper.
            With rows, only the trees of the full `max_depth` start at the root.
        num_speculative_tokens: M, most drafted nodes; the root is not counted.
        max_depth: D, most levels below the root.

    Raises:
        InputError: if an argument is out of its bounds.

    Example:
        >>> table = solve([0.5, 0.25], num_speculative_tokens=3, max_depth=2)
        >>> float(table.tokens[2].max())  # the tree of both ranks, and of rank 0 twice
        1.75
        >>> table.template(2, 1).paths
        ((0,), (1,))
    """
    probabilities = _check(acceptance)
    check_integer("num_speculative_tokens", num_speculative_tokens, 0, None)
    check_integer("max_depth", max_depth, 1, None)
    nodes = num_speculative_tokens + 1  # the programme counts a tree's own root
    counts = np.arange(nodes + 1)
    best = np.where(counts == 1, 1.0, -np.inf)
    table = [best]
    shares = np.zeros((max_depth + 1, probabilities.shape[1], nodes + 1), np.int32)
    # windows[m, y] is rest[m - y], the best of the later siblings once child k has y of m nodes.
    padded = np.full(2 * nodes + 1, -np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, nodes + 1)[:, ::-1]
    for levels in range(1, max_depth + 1):
        # Apart, because -inf times a probability of 0 is not a number.
        possible = np.isfinite(best)
        below, barred = np.where(possible, best, 0.0), np.where(possible, 0.0, -np.inf)
        rest = np.where(counts == 0, 0.0, -np.inf)
        row = probabilities[min(max_depth - levels, len(probabilities) - 1)]
        for rank in reversed(range(len(row))):
            padded[nodes:] = rest
            totals = windows + (row[rank] * below + barred)
            share = totals.argmax(-1)
            rest = np.where(counts == 0, 0.0, totals[counts, share])
            shares[levels, rank] = share
        best = np.append(-np.inf, 1.0 + rest[:-1])
        table.append(best)
    return Optimum(np.stack(table, axis=1)[1:], shares)


def best_template(acceptance: Acceptance, num_speculative_tokens: int, max_depth: int) -> Template:
    """Returns the tree with the most expected tokens (Chen et al. 2024, section 3.1).

    Args:
        acceptance: probability that the child of each rank is the one that is kept, such as
            `acceptance_vector.measure` finds; or such a row for each depth of the parent, see
            `solve`.
        num_speculative_tokens: drafted nodes; the root is not counted.
        max_depth: most levels below the root, each a forward pass of the draft model.

    Returns:
        A template of exactly so many nodes, for `jspec.Sequoia`.

    Raises:
        InputError: if an argument is out of its bounds, or there is no such tree.

    Example:
        >>> best_template([0.6, 0.2, 0.1], num_speculative_tokens=4, max_depth=3).paths
        ((0,), (1,), (0, 0), (0, 0, 0))
    """
    return solve(acceptance, num_speculative_tokens, max_depth).template(
        num_speculative_tokens, max_depth
    )


class TreeShape(NamedTuple):
    """The size of the tree that suits a machine."""

    num_speculative_tokens: int
    """The number of drafted nodes; 0 means not to draft."""
    max_depth: int
    """The number of levels below the root."""
    time: float
    """The expected time per token, in the unit of the costs."""


def choose(
    acceptance: Sequence[float],
    target_cost: Mapping[int, float],
    draft_cost: float,
    max_depth: int,
) -> TreeShape:
    """Returns the size with the least time per expected token.

    This is Sequoia's hardware-aware choice (Chen et al. 2024, section 3.3). A tree of d levels
    takes d forward passes of the draft model. Sequoia counts one more, for the root's level: add
    one `draft_cost` to every `target_cost` for its figures.

    Args:
        acceptance: probability that the child of each rank is the one that is kept.
        target_cost: time of the target's forward pass over a tree, by its drafted nodes; 0 is the
            forward pass of plain decoding. These are the sizes to choose from.
        draft_cost: time of one forward pass of the draft model.
        max_depth: most levels below the root.

    Raises:
        InputError: if an argument is out of its bounds, or there is no tree of any size given.

    Example:
        >>> choose([0.8], {0: 10.0, 1: 10.5, 4: 11.0}, draft_cost=1.0, max_depth=4)[:2]
        (4, 4)
    """
    if not target_cost:
        raise InputError(
            "target_cost is empty; pass the time of a forward pass for one size or more"
        )
    for nodes, time in target_cost.items():
        check_integer("target_cost has a size that", nodes, 0, None, "in drafted nodes")
        check_number(f"target_cost[{nodes}]", time, 0, None, "a time", above_low=True)
    check_number("draft_cost", draft_cost, 0, None, "a time")
    check_integer("max_depth", max_depth, 1, None)
    tokens = solve(acceptance, max(target_cost), max_depth).tokens
    choices = [
        TreeShape(nodes, depth, float((depth * draft_cost + time) / tokens[nodes, depth]))
        for nodes, time in sorted(target_cost.items())
        for depth in range(max_depth + 1)
        if np.isfinite(tokens[nodes, depth])
    ]
    if not choices:
        raise InputError(
            f"target_cost begins at {min(target_cost)} nodes, but no tree of {max_depth} levels "
            "with so many children has one of its sizes; add the times of smaller trees"
        )
    return min(choices, key=lambda choice: choice.time)  # the smallest of equally fast ones


def _check(acceptance: Acceptance) -> Float[np.ndarray, "L K"]:
    probabilities = np.asarray(acceptance, np.float64)
    if probabilities.ndim not in (1, 2) or not probabilities.size:
        raise InputError(
            f"acceptance has the shape {probabilities.shape}; pass one probability or more, by "
            "rank, or a row of them for each depth"
        )
    outside = probabilities[~((probabilities >= 0) & (probabilities <= 1))]
    if outside.size:
        raise InputError(f"acceptance has {outside[0]}; pass probabilities, 0 .. 1, by rank")
    probabilities = np.atleast_2d(probabilities)
    if (total := probabilities.sum(-1).max()) > 1 + _TOLERANCE:
        raise InputError(
            f"acceptance sums to {total:.6f}, above 1; at most one child is kept, so pass "
            "unconditional probabilities"
        )
    return probabilities
