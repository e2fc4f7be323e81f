"""Sequoia's dynamic programme (Chen et al. 2024): the best static tree for an acceptance vector.

acceptance[i] is the probability that, of a node's children in drawing order, child i is the one
that is kept; what is missing to 1 is the probability that none is. A node is then reached with the
product along its path, and the sum over all nodes is the number of tokens that a round is expected
to emit. Sequoia counts levels, the root's included; a depth here counts edges, one fewer.

Everything runs once, before anything is traced.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jspec.errors import InputError
from jspec.tree import Template

Acceptance = Sequence[float] | Float[np.ndarray, "L K"]

_TOLERANCE = 1e-6
"""How far measured probabilities may sum above 1."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best trees of all sizes up to M nodes and D edges, from one run of the programme."""

    tokens: Float[np.ndarray, "M+1 D+1"]
    """T[m, d]: the tokens that a round is expected to emit with the best tree of m nodes, root
    included, at most d edges deep; -inf where there is no such tree."""
    shares: Int[np.ndarray, "D+1 K M+1"]
    """[d, k, m]: how many of m nodes child k of a node gets if the rest goes to later siblings and
    all stand at most d edges below the node."""

    def template(self, nodes: int, depth: int) -> Template:
        """The tree behind `tokens[nodes, depth]`.

        Raises:
            InputError: if that lies outside the table, or there is no such tree.
        """
        _check_at_least_one(nodes=nodes, depth=depth)
        most_nodes, most_edges = (size - 1 for size in self.tokens.shape)
        if nodes > most_nodes or depth > most_edges:
            raise InputError(
                f"{nodes} nodes and depth {depth} are outside the table, which ends at "
                f"{most_nodes} nodes and depth {most_edges}; solve for more"
            )
        if self.tokens[nodes, depth] == -np.inf:
            most = np.flatnonzero(np.isfinite(self.tokens[:, depth])).max()
            raise InputError(
                f"nodes is {nodes}, but {self.shares.shape[1]} children a node and depth {depth} "
                f"make at most {most}; ask for fewer, or pass a longer acceptance vector or depth"
            )
        return Template(tuple(self._paths(nodes, depth, ())))

    def _paths(self, nodes: int, depth: int, above: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        left, rank = nodes - 1, 0
        while left:
            share = int(self.shares[depth, rank, left])
            yield (*above, rank)
            yield from self._paths(share, depth - 1, (*above, rank))
            left, rank = left - share, rank + 1


def solve(acceptance: Acceptance, nodes: int, depth: int) -> Optimum:
    """Runs the programme: O(M^2 D K) for M nodes, D edges and K children.

    Args:
        acceptance: probability that the child of each rank is the one that is kept; or such a row
            for each depth of the parent, the root's first and the last for all that are deeper.
            With rows, only the trees of the full `depth` start at the root.
        nodes: most nodes, root included.
        depth: most edges from the root to a leaf.

    Raises:
        InputError: if an argument is out of its bounds.
    """
    chances = _checked(acceptance)
    _check_at_least_one(nodes=nodes, depth=depth)
    counts = np.arange(nodes + 1)
    best = np.where(counts == 1, 1.0, -np.inf)
    table = [best]
    shares = np.zeros((depth + 1, chances.shape[1], nodes + 1), np.int32)
    # windows[m, y] is rest[m - y], the best of the later siblings once child k has y of m nodes.
    padded = np.full(2 * nodes + 1, -np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, nodes + 1)[:, ::-1]
    for edges in range(1, depth + 1):
        # Apart, because -inf times a chance of 0 is no number.
        possible = np.isfinite(best)
        below, barred = np.where(possible, best, 0.0), np.where(possible, 0.0, -np.inf)
        rest = np.where(counts == 0, 0.0, -np.inf)
        row = chances[min(depth - edges, len(chances) - 1)]
        for rank in reversed(range(len(row))):
            padded[nodes:] = rest
            totals = windows + (row[rank] * below + barred)
            share = totals.argmax(-1)
            rest = np.where(counts == 0, 0.0, totals[counts, share])
            shares[edges, rank] = share
        best = np.append(-np.inf, 1.0 + rest[:-1])
        table.append(best)
    return Optimum(np.stack(table, axis=1), shares)


def best_template(acceptance: Acceptance, nodes: int, depth: int) -> Template:
    """The tree of `nodes` nodes with which a round is expected to emit most tokens.

    Args:
        acceptance: probability that the child of each rank is the one that is kept; or such a row
            for each depth of the parent, see `solve`.
        nodes: N, root included.
        depth: most edges from the root to a leaf, each a forward of the draft model.

    Raises:
        InputError: if an argument is out of its bounds, or there is no such tree.
    """
    return solve(acceptance, nodes, depth).template(nodes, depth)


class Choice(NamedTuple):
    """The size of the tree that suits a machine."""

    nodes: int
    """N, root included."""
    depth: int
    """Edges from the root to the deepest leaf; 0, with 1 node: do not draft."""
    time: float
    """Expected time per token, in the unit of the costs."""


def choose(
    acceptance: Sequence[float],
    target_cost: Mapping[int, float],
    draft_cost: float,
    max_depth: int,
) -> Choice:
    """The size with the least (depth * draft_cost + target_cost[nodes]) / expected tokens.

    A tree of d edges takes d forwards of the draft model. Sequoia counts one more, for the root's
    level: add one `draft_cost` to every `target_cost` for its figures.

    Args:
        acceptance: probability that the child of each rank is the one that is kept.
        target_cost: time of the target's forward over a tree, by nodes; the sizes to choose from.
        draft_cost: time of one forward of the draft model.
        max_depth: most edges from the root to a leaf.

    Raises:
        InputError: if an argument is out of its bounds, or there is no tree of any size given.
    """
    if not target_cost:
        raise InputError("target_cost is empty; pass the time of a forward for one size or more")
    for nodes, time in target_cost.items():
        if nodes < 1 or not 0 < time < np.inf:
            raise InputError(
                f"target_cost has the time {time} for {nodes} nodes; both are above 0, and finite"
            )
    if not 0 <= draft_cost < np.inf:
        raise InputError(f"draft_cost is {draft_cost}; it is a time, finite and at least 0")
    _check_at_least_one(max_depth=max_depth)
    tokens = solve(acceptance, max(target_cost), max_depth).tokens
    choices = [
        Choice(nodes, depth, float((depth * draft_cost + time) / tokens[nodes, depth]))
        for nodes, time in sorted(target_cost.items())
        for depth in range(max_depth + 1)
        if np.isfinite(tokens[nodes, depth])
    ]
    if not choices:
        raise InputError(
            f"target_cost has {min(target_cost)} nodes and more, but no tree of depth {max_depth} "
            "with so many children has one of its sizes; add the times of smaller trees"
        )
    return min(choices, key=lambda choice: choice.time)  # the smallest of equally fast ones


def memory_bound_speedup(tokens: float, levels: int, ratio: float) -> float:
    """MBSU (Jeon et al. 2024, section 4): the speed-up if reading weights is all that takes time.

    eta / (L r + 1). (The text of the paper has r upside down; its tables have it so.)

    Args:
        tokens: eta, emitted per target forward, the bonus token included.
        levels: L, forwards of the draft model per target forward.
        ratio: r, parameters of the draft over those of the target.
    """
    return tokens / (levels * ratio + 1)


def _checked(acceptance: Acceptance) -> Float[np.ndarray, "L K"]:
    chances = np.asarray(acceptance, np.float64)
    if chances.ndim not in (1, 2) or not chances.size:
        raise InputError(
            f"acceptance has the shape {chances.shape}; pass one probability or more, by rank, or "
            "a row of them for each depth"
        )
    outside = chances[~((chances >= 0) & (chances <= 1))]
    if outside.size:
        raise InputError(f"acceptance has {outside[0]}; pass probabilities, 0 .. 1, by rank")
    chances = np.atleast_2d(chances)
    if (total := chances.sum(-1).max()) > 1 + _TOLERANCE:
        raise InputError(
            f"acceptance sums to {total:.6f}, above 1; at most one child is kept, so pass "
            "unconditional probabilities"
        )
    return chances


def _check_at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise InputError(f"{name} is {number}; pass at least 1")
