"""Trees: what follows from parents, and the static templates."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec.arguments import check_integer
from jspec.base import NO_PARENT, Tree
from jspec.errors import InputError
from jspec.manual_axes import vary

_RANKS = 1 << 20
"""The largest number of children of a template's node."""


def ancestors(tree: Tree) -> Bool[Array, "B N N"]:
    """The mask of tree attention: `[b, i, j]` is True where node j is node i or above it."""
    nodes = jnp.arange(tree.parents.shape[-1])
    above, current = tree.parents[..., None] == nodes, tree.parents
    mask = above | (nodes[:, None] == nodes)
    for _ in range(tree.depth - 1):
        # One level up; the root's parent -1 is kept by clamping the gather and masking it.
        higher = jnp.take_along_axis(tree.parents, jnp.maximum(current, 0), axis=-1)
        current = jnp.where(current == NO_PARENT, NO_PARENT, higher)
        mask = mask | (current[..., None] == nodes)
    return mask


def depths(tree: Tree) -> Int[Array, "B N"]:
    """The number of edges between each node and the root."""
    return ancestors(tree).sum(-1, dtype=jnp.int32) - 1


def depth_first(tree: Tree) -> Int[Array, "B N"]:
    """Node ids in depth-first order, siblings as they were, absent nodes last.

    Each node then stands near its ancestors, which leaves fewer blocks of the attention mask with
    anything in them (DySpec, Xiong et al. 2024, section 4.4): of use to block-sparse kernels.
    """
    nodes = jnp.arange(tree.tokens.shape[1])
    mask = ancestors(tree)
    size = (mask & tree.valid[..., None]).sum(-2)  # of each node's subtree
    alike = (tree.parents[..., None] == tree.parents[:, None, :]) & tree.valid[:, None, :]
    before = jnp.where(alike & (nodes[:, None] > nodes), size[:, None, :], 0).sum(-1)
    # A node comes after its ancestors, and after all that hangs from their earlier siblings.
    place = jnp.where(mask, before[:, None, :] + 1, 0).sum(-1) - 1
    return jnp.argsort(jnp.where(tree.valid, place, len(nodes)), axis=-1, stable=True)


def reordered(tree: Tree, order: Int[Array, "B N"]) -> Tree:
    """The tree with node `order[b, i]` at place i; parents must stay before their children."""

    def pick(array):
        return jnp.take_along_axis(array, order, axis=-1)

    place = jnp.argsort(order, axis=-1).astype(jnp.int32)
    above = pick(tree.parents)
    parents = jnp.take_along_axis(place, jnp.maximum(above, 0), axis=-1)
    return replace(
        tree,
        tokens=pick(tree.tokens),
        parents=jnp.where(above == NO_PARENT, NO_PARENT, parents),
        valid=pick(tree.valid),
        q_row=None if tree.q_row is None else pick(tree.q_row),
        value=None if tree.value is None else pick(tree.value),
    )


def along(
    parents: Int[Array, "B N"], values: Array, join: Callable[[Array, Array], Array], depth: int
) -> Array:
    """The value of each node joined with all values above it; the root's has to be neutral.

    Args:
        parents: of the nodes, -1 at the root.
        values: [B, N].
        join: of two values, such as their product or minimum.
        depth: most edges from the root to a node.
    """
    above = jnp.maximum(parents, 0)

    def lower(_, total):
        return join(values, jnp.take_along_axis(total, above, axis=1))

    # Passes beyond a node's depth change nothing, since the root's value is neutral.
    return jax.lax.fori_loop(0, depth, lower, vary(values, parents))


def best(tree: Tree, nodes: int) -> Tree:
    """The tree's `nodes` nodes of largest `Tree.value` beside the root, in the old order.

    Since values fall along paths, and a tie goes to the earlier node, what is left is a tree. There
    are fewer where fewer are valid: the places left over are absent.
    """
    return kept(tree, best_nodes(tree, nodes))


def best_nodes(tree: Tree, nodes: int) -> Int[Array, "B n"]:
    """The ids of the nodes that `best` keeps, rising; the root's is the first."""
    assert tree.value is not None, "a tree is cut by value"
    count = min(nodes + 1, tree.tokens.shape[1])
    root = jnp.arange(tree.tokens.shape[1]) == 0
    # NaN, which sorting puts above all numbers, has no value; nor has what is below it.
    there = jnp.where(jnp.isnan(tree.value), False, tree.valid)
    order = jnp.where(root, jnp.inf, jnp.where(there, tree.value, -1.0))
    return jnp.sort(jax.lax.top_k(order, count)[1], axis=-1).astype(jnp.int32)


def kept(tree: Tree, chosen: Int[Array, "B n"]) -> Tree:
    """The tree of n of its nodes: rising ids, the root's first, a parent's with its child's."""
    num_drafted = chosen.shape[1] - 1

    def pick(array):
        return jnp.take_along_axis(array, chosen, axis=-1)

    # A node stands where as many chosen ones come before it; so does the parent of one.
    place = jax.vmap(jnp.searchsorted)(chosen, pick(tree.parents)).astype(jnp.int32)
    there = tree.valid if tree.value is None else tree.valid & ~jnp.isnan(tree.value)
    valid = pick(there).at[:, 0].set(True)
    return replace(
        tree,
        tokens=pick(tree.tokens),
        parents=jnp.where(valid, place, 0).at[:, 0].set(NO_PARENT),
        valid=valid,
        value=None if tree.value is None else jnp.where(valid, pick(tree.value), 0.0),
        depth=min(tree.depth, num_drafted),
        width=max(min(tree.width, num_drafted), 1),
    )


def children(
    parents: Int[Array, " N"], valid: Bool[Array, " N"], node: Int[Array, ""], width: int
) -> Int[Array, " K"]:
    """Node ids of `node`'s children, in order; N where there is none. K = width."""
    nodes = jnp.arange(parents.shape[0], dtype=jnp.int32)
    found = jnp.where((parents == node) & valid, nodes, parents.shape[0])
    return jnp.sort(found)[:width]


def root_only(root: Int[Array, " B"]) -> Tree:
    """The tree of plain decoding: N = 1."""
    batch = root.shape[0]
    return Tree(
        tokens=root[:, None],
        parents=jnp.full((batch, 1), NO_PARENT, jnp.int32),
        valid=jnp.ones((batch, 1), bool),
        depth=0,
        width=1,
    )


@dataclass(frozen=True)
class Template:
    """A static tree: each drafted node is the path of ranks that leads to it from the root.

    Nodes are in breadth-first order, siblings by rank; node 0 is the root, the empty path.

    Raises:
        InputError: if a path is empty or given twice, or if its parent or an earlier sibling's
            rank is negative or its prefix is missing.
    """

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self):
        ordered = tuple(sorted((tuple(path) for path in self.paths), key=lambda p: (len(p), p)))
        object.__setattr__(self, "paths", ordered)
        known: set[tuple[int, ...]] = {()}
        for path in ordered:
            if not path or path in known:
                raise InputError(
                    f"tree template has the path {list(path)} twice or empty; "
                    "give each drafted node once and leave the root out"
                )
            if min(path) < 0:
                raise InputError(f"tree template has the rank {min(path)}; ranks start at 0")
            if max(path) >= _RANKS:
                raise InputError(f"tree template has the rank {max(path)}; stay below {_RANKS}")
            if path[:-1] not in known:
                raise InputError(
                    f"tree template has {list(path)} but not its parent {list(path[:-1])}; add it"
                )
            known.add(path)

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

    def fill(self, tokens: Int[Array, "B N"]) -> Tree:
        """The tree of this shape with these tokens."""
        shape = tokens.shape
        return Tree(
            tokens=tokens,
            parents=jnp.broadcast_to(jnp.asarray(self.parents), shape),
            valid=jnp.ones(shape, bool),
            depth=self.depth,
            width=self.width,
        )


def chain(length: int) -> Template:
    """The template of a chain of `length` drafted tokens."""
    return Template(tuple((0,) * depth for depth in range(1, length + 1)))


def branching(factors: Sequence[int]) -> Template:
    """The template in which every node of depth l has `factors[l]` children."""
    return Template(
        tuple(
            path
            for level in range(1, len(factors) + 1)
            for path in itertools.product(*(range(factor) for factor in factors[:level]))
        )
    )


def likeliest(acceptance: Sequence[float], num_speculative_tokens: int) -> Template:
    """The template of so many drafted nodes that is expected to be accepted furthest.

    Takes for granted that the child of rank r is right with probability `acceptance[r]` wherever
    it stands, so that a node is worth the product along its path: the best nodes are taken.

    Args:
        acceptance: probability that the token of rank r follows its parent; ranks in order.
        num_speculative_tokens: drafted nodes; the root is not counted.

    Raises:
        InputError: if there are fewer than 1 node, or a probability is outside 0 .. 1.
    """
    check_integer("num_speculative_tokens", num_speculative_tokens, 0, None)
    if not acceptance or not all(0 <= chance <= 1 for chance in acceptance):
        raise InputError(f"acceptance is {list(acceptance)}; pass probabilities, 0 .. 1, by rank")
    return Template(tuple(best_paths(lambda depth: acceptance, num_speculative_tokens)))


def best_paths(chances: Callable[[int], Sequence[float]], count: int) -> list[tuple[int, ...]]:
    """The `count` paths of ranks with the largest products of chances, or all if there are fewer.

    Args:
        chances: of a node of that depth's children to be right, by rank; none: it has none.
        count: of paths.
    """
    paths: list[tuple[int, ...]] = []
    # A heap of (-value, path): the best node is taken and offers its children.
    offers: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    while offers and len(paths) <= count:
        value, path = heapq.heappop(offers)
        paths.append(path)
        for rank, chance in enumerate(chances(len(path))):
            heapq.heappush(offers, (value * chance, (*path, rank)))
    return paths[1:]
