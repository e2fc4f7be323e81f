"""Static trees: templates that say which rank of its parent's children each node is."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.types import NO_PARENT, Tree

_RANKS = 1 << 20
"""The largest number of children of a template's node."""


@dataclass(frozen=True)
class Template:
    """A static tree: each drafted node is the path of ranks that leads to it from the root.

    Nodes are in breadth-first order, siblings by rank; node 0 is the root, the empty path.

    Raises:
        InputError: for an empty or repeated path, a missing parent, or a rank not in 0 .. 2^20 - 1.

    Example:
        >>> template = Template(((0,), (1,), (0, 0)))
        >>> template.parents.tolist(), template.depth, template.width
        ([-1, 0, 0, 1], 2, 2)
    """

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self):
        ordered = tuple(sorted((tuple(path) for path in self.paths), key=lambda p: (len(p), p)))
        object.__setattr__(self, "paths", ordered)
        nodes: set[tuple[int, ...]] = {()}
        for path in ordered:
            if not path or path in nodes:
                raise InputError(
                    f"tree template has the path {list(path)} twice or empty; "
                    "give each drafted node once and leave the root out"
                )
            for rank in path:
                check_integer("a rank of the tree template", rank, 0, _RANKS - 1)
            if path[:-1] not in nodes:
                raise InputError(
                    f"tree template has {list(path)} but not its parent {list(path[:-1])}; add it"
                )
            nodes.add(path)

    @property
    def num_nodes(self) -> int:
        """The number of nodes N, root included."""
        return len(self.paths) + 1

    @cached_property
    def parents(self) -> np.ndarray:
        """The parent of each node, [N] int32; -1 at the root."""
        index = {(): 0} | {path: i for i, path in enumerate(self.paths, 1)}
        return np.array([NO_PARENT] + [index[path[:-1]] for path in self.paths], np.int32)

    @cached_property
    def ranks(self) -> np.ndarray:
        """The rank of each node among its siblings, [N] int32; 0 at the root."""
        return np.array([0] + [path[-1] for path in self.paths], np.int32)

    @cached_property
    def levels(self) -> tuple[np.ndarray, ...]:
        """The node ids of each depth, from 1."""
        depth = np.array([0] + [len(path) for path in self.paths])
        return tuple(np.flatnonzero(depth == level) for level in range(1, depth.max(initial=0) + 1))

    @property
    def depth(self) -> int:
        return len(self.levels)

    @property
    def width(self) -> int:
        """The largest number of children of one node; at least 1."""
        drafted = self.parents[1:]
        return int(np.bincount(drafted).max()) if drafted.size else 1

    @property
    def max_rank(self) -> int:
        return int(self.ranks.max())

    def fill(self, tokens: Int[Array, "B N"], valid: Bool[Array, "B N"] | None = None) -> Tree:
        """Returns the tree of this shape with these tokens, root first.

        Args:
            tokens: of each node.
            valid: False for nodes without a guess, which are absent with all below them; the
                root's is not read. None: all are there.

        Raises:
            InputError: if there are not N tokens.

        Example:
            >>> tokens = jnp.array([[5, 6, 7]])
            >>> chain(2).fill(tokens, valid=tokens < 7).valid.tolist()
            [[True, True, False]]
        """
        shape = tokens.shape
        if len(shape) != 2 or shape[1] != self.num_nodes:
            raise InputError(
                f"tokens has shape {shape} and the template has {self.num_nodes} nodes, the root "
                f"among them; pass [B, {self.num_nodes}]"
            )
        root = np.arange(self.num_nodes) == 0
        return Tree(
            tokens=tokens,
            parents=jnp.broadcast_to(jnp.asarray(self.parents), shape),
            valid=jnp.ones(shape, bool) if valid is None else valid | root,
            depth=self.depth,
            width=self.width,
        )


def chain(length: int) -> Template:
    """Returns the template of a chain of `length` drafted tokens.

    Args:
        length: drafted tokens.

    Raises:
        InputError: if the length is not an integer, or negative.

    Example:
        >>> chain(3).paths
        ((0,), (0, 0), (0, 0, 0))
    """
    check_integer("length", length, 0, None)
    return Template(tuple((0,) * depth for depth in range(1, length + 1)))


def branching(factors: Sequence[int]) -> Template:
    """Returns the template in which every node of depth l has `factors[l]` children.

    Args:
        factors: children of a node, level by level.

    Raises:
        InputError: if these are not integers of at least 1.

    Example:
        >>> branching([2, 1]).paths
        ((0,), (1,), (0, 0), (1, 0))
    """
    if not isinstance(factors, Sequence | np.ndarray):
        raise InputError(f"factors is {factors!r:.80}; pass the children of a node, level by level")
    for factor in factors:
        check_integer("a factor", factor, 1, None)
    return Template(
        tuple(
            path
            for level in range(1, len(factors) + 1)
            for path in itertools.product(*(range(factor) for factor in factors[:level]))
        )
    )


def likeliest(acceptance: Sequence[float], num_speculative_tokens: int) -> Template:
    """Returns the template of so many drafted nodes that is expected to be accepted furthest.

    Takes for granted that the child of rank r is right with probability `acceptance[r]` anywhere,
    so that a node's value is the product along its path: the best nodes are taken.

    Args:
        acceptance: probability that the token of rank r follows its parent; ranks in order.
        num_speculative_tokens: drafted nodes; the root is not counted.

    Raises:
        InputError: for a number of nodes not 0, 1, .. or a probability outside 0 .. 1.

    Example:
        >>> likeliest([0.6, 0.3], 3).paths
        ((0,), (1,), (0, 0))
    """
    check_integer("num_speculative_tokens", num_speculative_tokens, 0, None)
    if not len(acceptance) or not all(0 <= probability <= 1 for probability in acceptance):
        raise InputError(f"acceptance is {list(acceptance)}; pass probabilities, 0 .. 1, by rank")
    return Template(tuple(best_paths(lambda depth: acceptance, num_speculative_tokens)))


def best_paths(
    probabilities: Callable[[int], Sequence[float]], count: int
) -> list[tuple[int, ...]]:
    """Returns the `count` paths of ranks with the largest products, or all if there are fewer.

    Args:
        probabilities: of a node of that depth's children to be right, by rank; none: it has none.
        count: of paths.
    """
    paths: list[tuple[int, ...]] = []
    # A heap of (-value, path): the best node is taken and offers its children.
    offers: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    while offers and len(paths) <= count:
        value, path = heapq.heappop(offers)
        paths.append(path)
        for rank, probability in enumerate(probabilities(len(path))):
            heapq.heappush(offers, (value * probability, (*path, rank)))
    return paths[1:]
