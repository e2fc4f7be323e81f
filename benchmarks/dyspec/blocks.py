"""Blocks of the attention mask that an order leaves: DySpec (Xiong et al. 2024), App. C.

Tree attention computes blocks of 32 x 32 entries and can skip those without any. The order of the
nodes decides how many there are (Definition 1). The orders are that in which the tree has grown,
breadth first, depth first, and along heavy paths (largest subtree first). Times are those of
`benchmarks.accelerator --section attention`.

python -m benchmarks.dyspec.blocks --rows blocks.jsonl
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Bool, Int
from rich import box
from rich.table import Table

from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger

BLOCK = 32
PAPER = {256: (36, 22.5), 512: (135.5, 52.8), 1024: (490.2, 119.3), 2048: (1654.5, 278.7)}
"""Blocks without and with reordering in the paper's Table 5, by size of a random tree."""

Parents = Int[np.ndarray, " N"]
Order = Callable[[Parents], Int[np.ndarray, " N"]]


def main(
    sizes: Annotated[
        str, typer.Option(help="nodes of random trees, comma-separated")
    ] = "64,128,256,512,1024,2048",
    trees: Annotated[int, typer.Option(min=1, help="random trees of each size")] = 10,
    rows: Annotated[Path | None, typer.Option(help="write counts here, JSON lines")] = None,
) -> None:
    """Counts the blocks of random trees."""
    headline(f"blocks of {BLOCK} x {BLOCK} with an entry, by order of the nodes")
    random = np.random.default_rng(0)
    found = {
        int(size): [recursive(random, int(size)) for _ in range(trees)] for size in sizes.split(",")
    }
    console.print(table("random trees", found, PAPER, rows))


def recursive(random: np.random.Generator, size: int) -> Parents:
    """Returns a random tree: every node hangs from any of those before it."""
    return np.array([-1, *(random.integers(node) for node in range(1, size))])


def as_grown(parents: Parents) -> Int[np.ndarray, " N"]:
    """Returns the order in which the nodes are."""
    return np.arange(len(parents))


def breadth_first(parents: Parents) -> Int[np.ndarray, " N"]:
    """Orders nodes level by level."""
    order = depth_first(parents)
    return order[np.argsort(depths(parents)[order], kind="stable")]


def depth_first(parents: Parents) -> Int[np.ndarray, " N"]:
    """Orders nodes depth first, siblings as they are: DySpec's order."""
    return _walk(parents, np.zeros(len(parents)))


def heavy_paths(parents: Parents) -> Int[np.ndarray, " N"]:
    """Orders nodes depth first, the largest subtree first: the paper's near-optimal order (HPD)."""
    sizes = np.ones(len(parents), np.int64)
    for node in range(len(parents) - 1, 0, -1):
        sizes[parents[node]] += sizes[node]
    return _walk(parents, -sizes)


ORDERS: Mapping[str, Order] = {
    "as grown": as_grown,
    "breadth first": breadth_first,
    "depth first": depth_first,
    "heavy paths": heavy_paths,
}


def blocks(parents: Parents, order: Int[np.ndarray, " N"], prefix: int = 0) -> int:
    """Returns blocks of the mask that hold an entry, with so many tokens before the tree.

    Example:
        >>> blocks(np.arange(-1, 63), np.arange(64))  # a chain: all but the upper right block
        3
    """
    tree = mask(parents)[np.ix_(order, order)]
    whole = np.concatenate([np.ones((len(tree), prefix), bool), tree], axis=1)
    more = [(0, -length % BLOCK) for length in whole.shape]
    tiles = np.pad(whole, more)
    tiles = tiles.reshape(tiles.shape[0] // BLOCK, BLOCK, tiles.shape[1] // BLOCK, BLOCK)
    return int(tiles.any((1, 3)).sum())


def mask(parents: Parents) -> Bool[np.ndarray, "N N"]:
    """Returns True where the second node is the first or above it."""
    found = np.eye(len(parents), dtype=bool)
    for node in range(1, len(parents)):
        found[node] |= found[parents[node]]
    return found


def reordered(parents: Parents, order: Order) -> Bool[np.ndarray, "N N"]:
    """Returns the mask with the nodes in an order."""
    places = order(parents)
    return mask(parents)[np.ix_(places, places)]


def table(
    title: str,
    found: Mapping[int, list[Parents]],
    paper: Mapping[int, tuple[float, float]],
    rows: Path | None = None,
) -> Table:
    """Returns mean blocks by size and order, the paper's counts alongside; each a row of a file."""
    shown = Table(title, *ORDERS, "the paper", box=box.MARKDOWN)
    ledger = Ledger(rows, dict(bench="dyspec_blocks", trees=title))
    for size, trees in found.items():
        counts = {
            name: [blocks(tree, order(tree)) for tree in trees] for name, order in ORDERS.items()
        }
        if not ledger.find(nodes=size, count=len(trees)):
            ledger.add(nodes=size, count=len(trees), blocks=counts)
        theirs = " and ".join(f"{count:g}" for count in paper.get(size, ()))
        shown.add_row(str(size), *(f"{np.mean(each):.1f}" for each in counts.values()), theirs)
    return shown


def depths(parents: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Returns edges from the root to each node; parents come before children."""
    found = np.zeros(len(parents), np.int64)
    for node in range(1, len(parents)):
        found[node] = found[parents[node]] + 1
    return found


def _walk(parents: Parents, key: np.ndarray) -> Int[np.ndarray, " N"]:
    """Orders nodes depth first from the root, siblings by rising key and then as they are."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    order, stack = [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += sorted(children[node], key=lambda child: (key[child], child), reverse=True)
    return np.array(order)


if __name__ == "__main__":
    command(main)
