"""Appendix C of DySpec (Xiong et al. 2024): the blocks of the attention mask that an order leaves.

Tree attention computes blocks of 32 x 32 entries and can skip those without any. The order of the
nodes decides how many there are (Definition 1). The orders are that in which the tree has grown,
breadth first, depth first, and along heavy paths (largest subtree first). Counts need no kernel;
times do, and an accelerator (`benchmarks.dyspec.kernel_times`).

python -m benchmarks.dyspec.blocks --rows blocks.jsonl --out blocks.png
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from jaxtyping import Bool, Int
from rich import box
from rich.table import Table

from benchmarks import canvas, model_pairs, options
from benchmarks.dyspec import kernel_times
from benchmarks.dyspec.contenders import Workload, drafter
from benchmarks.dyspec.grown_trees import depths, traced
from benchmarks.dyspec.table import DRAFT_TEMPERATURE
from benchmarks.harness import command, console, headline, record
from jspec._validate.errors import InputError

BLOCK = 32
PAPER = {256: (36, 22.5), 512: (135.5, 52.8), 1024: (490.2, 119.3), 2048: (1654.5, 278.7)}
"""Blocks without and with reordering in the paper's Table 5, by size of a random tree."""
PAPER_REAL = {768: (366.12, 218.31), 1024: (580.07, 295.59)}
"""The same of trees that were drafted (appendix C.1, Fig. 9)."""

Parents = Int[np.ndarray, " N"]
Order = Callable[[Parents], Int[np.ndarray, " N"]]


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = "stories",
    sizes: Annotated[
        str, typer.Option(help="nodes of random trees, comma-separated")
    ] = "64,128,256,512,1024,2048",
    budgets: Annotated[
        str, typer.Option(help="drafted nodes of DySpec's trees, comma-separated; empty: none")
    ] = "64,256",
    prefixes: Annotated[
        str, typer.Option(help="tokens before the tree, comma-separated")
    ] = "0,128,512",
    trees: Annotated[int, typer.Option(min=1, help="random trees of each size")] = 10,
    prompt_tokens: options.PromptTokens = 128,
    new_tokens: options.NewTokens = 32,
    temperature: Annotated[float, typer.Option(help="of the target")] = 0.6,
    heads: Annotated[int, typer.Option(min=1, help="of the attention that is timed")] = 64,
    head_dim: Annotated[int, typer.Option(min=16, help="of it")] = 128,
    rows: Annotated[
        Path | None, typer.Option(help="write counts and times here, JSON lines")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write Figs. 6, 8 and 9 here, a PNG")] = None,
) -> None:
    """Random trees need no model; DySpec's are those of real rounds, one text of each class."""
    headline(f"blocks of {BLOCK} x {BLOCK} with an entry, by order of the nodes")
    random = np.random.default_rng(0)
    found = {
        int(size): [recursive(random, int(size)) for _ in range(trees)] for size in sizes.split(",")
    }
    console.print(table("random trees", found, (0,), PAPER, rows))
    masks = {
        (size, name): reordered(trees[0], order)
        for size, trees in found.items()
        for name, order in ORDERS.items()
    }
    timed = kernel_times.report(masks, heads, head_dim, rows)
    if not budgets:
        if out is not None:
            draw(out, {}, (), timed)
            console.print(f"figure: {out}", soft_wrap=True)
        return
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes)
    work = Workload(pair, 1, 1, prompt_tokens, new_tokens)
    real: dict[int, list[Parents]] = {}
    for size in map(int, budgets.split(",")):
        method = drafter("dyspec", work, size, temperature, DRAFT_TEMPERATURE)
        rounds = traced(work, method, temperature)
        real[size] = [one.parents[: one.num_verified].astype(np.int64) for one in rounds]
    lengths = tuple(int(prefix) for prefix in prefixes.split(","))
    console.print(table(f"DySpec's trees, {pair.name}", real, lengths, PAPER_REAL, rows))
    console.print(
        "Of real trees the root is among the nodes. A prefix is read by every node: its blocks "
        "come on top, and the order moves none of them."
    )
    if out is not None:
        draw(out, real, lengths, timed)
        console.print(f"figure: {out}", soft_wrap=True)


def recursive(random: np.random.Generator, size: int) -> Parents:
    """A random tree: every node hangs from any of those before it."""
    return np.array([-1, *(random.integers(node) for node in range(1, size))])


def as_grown(parents: Parents) -> Int[np.ndarray, " N"]:
    """The order in which the nodes are."""
    return np.arange(len(parents))


def breadth_first(parents: Parents) -> Int[np.ndarray, " N"]:
    """Level by level."""
    order = depth_first(parents)
    return order[np.argsort(depths(parents)[order], kind="stable")]


def depth_first(parents: Parents) -> Int[np.ndarray, " N"]:
    """Depth first, siblings as they are: DySpec's order."""
    return _walk(parents, np.zeros(len(parents)))


def heavy_paths(parents: Parents) -> Int[np.ndarray, " N"]:
    """Depth first, the largest subtree first: the paper's near-optimal order (HPD)."""
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
    """Blocks of the mask that hold an entry, with so many tokens before the tree.

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
    """True where the second node is the first or above it."""
    found = np.eye(len(parents), dtype=bool)
    for node in range(1, len(parents)):
        found[node] |= found[parents[node]]
    return found


def reordered(parents: Parents, order: Order) -> Bool[np.ndarray, "N N"]:
    """The mask with the nodes in an order."""
    places = order(parents)
    return mask(parents)[np.ix_(places, places)]


def table(
    title: str,
    found: Mapping[int, list[Parents]],
    prefixes: tuple[int, ...],
    paper: Mapping[int, tuple[float, float]],
    rows: Path | None = None,
) -> Table:
    """Mean blocks by size, prefix and order, the paper's counts beside; each a row of a file."""
    shown = Table(title, "prefix", *ORDERS, "the paper", box=box.MARKDOWN)
    for size, trees in found.items():
        for prefix in prefixes:
            means = [
                np.mean([blocks(tree, order(tree), prefix) for tree in trees])
                for order in ORDERS.values()
            ]
            for name, mean in zip(ORDERS, means, strict=True):
                row = dict(trees=title, nodes=size, prefix=prefix, order=name, count=len(trees))
                record(rows, {"bench": "dyspec_blocks"} | row | {"blocks": round(float(mean), 2)})
            theirs = " and ".join(f"{count:g}" for count in paper.get(size, ()))
            cells = (f"{mean:.1f}" for mean in means)
            shown.add_row(str(size), str(prefix), *cells, "" if prefix else theirs)
    return shown


def draw(
    path: Path,
    real: Mapping[int, list[Parents]],
    prefixes: tuple[int, ...],
    timed: kernel_times.Times,
) -> None:
    """Figs. 6 and 7, the mask of a drafted tree in each order; Fig. 9, blocks by size; Fig. 8."""
    panels = (len(ORDERS) + 1 if real else 0) + bool(timed)
    if not panels:
        raise InputError("there is nothing to draw; pass --budgets, or run where a kernel is timed")
    figure, axes = canvas.panels(panels, 3.6, 3.8)
    if timed:
        kernel_times.panel(axes[0, -1], timed)
    if real:
        masks_and_counts(axes[0], real, prefixes)
    canvas.save(figure, path)


def masks_and_counts(
    axes: Any, real: Mapping[int, list[Parents]], prefixes: tuple[int, ...]
) -> None:
    """Figs. 6, 7 and 9 of drafted trees."""
    tree = max(real[max(real)], key=len)
    for axis, (name, order) in zip(axes, ORDERS.items(), strict=False):
        places = order(tree)
        axis.imshow(mask(tree)[np.ix_(places, places)], cmap="Greys", interpolation="nearest")
        axis.set(title=f"{name}: {blocks(tree, places)} blocks", xticks=[], yticks=[])
    last = axes[len(ORDERS)]
    for prefix in prefixes:
        for name, look in (("as grown", "--"), ("depth first", "-")):
            means = [
                np.mean([blocks(tree, ORDERS[name](tree), prefix) for tree in trees])
                for trees in real.values()
            ]
            last.plot(list(real), means, f"o{look}", label=f"{name}, {prefix} before")
    last.set(xlabel="drafted nodes", ylabel="blocks")
    last.legend(fontsize=7)


def _walk(parents: Parents, key: np.ndarray) -> Int[np.ndarray, " N"]:
    """Depth first from the root, siblings by rising key and then as they are."""
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
