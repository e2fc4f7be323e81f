"""The rounds of a fuzzed row, worked out by hand from the trees and the plain text."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jspec.testing.fuzz_drafter import ROOT, TEXT, FuzzShape, FuzzTrees


@dataclass(frozen=True)
class Told:
    """The expected outcome of one round."""

    number: int
    start: int
    """The number of tokens that the row had emitted before the round."""
    emitted: int
    trees: tuple[tuple[list[int], list[int], list[bool]], ...]

    def __str__(self) -> str:
        trees = " and ".join(
            f"tokens {tokens}, parents {parents}, valid {[int(x) for x in valid]}"
            for tokens, parents, valid in self.trees
        )
        return f"round {self.number} from token {self.start} should emit {self.emitted}: {trees}"


def play(
    params: tuple[FuzzTrees, ...],
    shapes: tuple[FuzzShape, ...],
    row: int,
    root: int,
    text: Int[np.ndarray, " T"],
    vocab_size: int,
) -> list[Told]:
    """Returns the rounds of a row, worked out from the trees and the plain text, without jspec."""
    told, start = [], 0
    while start < len(text):
        number = len(told)
        rounds = [_tree_at(trees, number, row, root, start) for trees in params]
        longest = max(
            accepted(*tree, shape, text[start:], vocab_size)
            for tree, shape in zip(rounds, shapes, strict=True)
        )
        emitted = min(longest + 1, len(text) - start)
        shown = tuple(tuple(x.tolist() for x in tree[:3]) for tree in rounds)
        told.append(Told(number, start, emitted, shown))
        start += emitted
        root = int(text[start - 1])
    return told


def _tree_at(trees: FuzzTrees, number: int, row: int, root: int, start: int) -> tuple[Any, ...]:
    at = number % trees.tokens.shape[0], row
    tokens, kinds, levels = trees.tokens[at], trees.kinds[at], trees.levels[at]
    places = np.clip(start + levels - 1, 0, trees.text.shape[1] - 1)
    tokens = np.select([kinds == TEXT, kinds == ROOT], [trees.text[row][places], root], tokens)
    value = None if trees.value is None else trees.value[at]
    return tokens, trees.parents[at], trees.valid[at], value


def accepted(
    tokens: Int[np.ndarray, " N"],
    parents: Int[np.ndarray, " N"],
    valid: Bool[np.ndarray, " N"],
    value: Float[np.ndarray, " N"] | None,
    shape: FuzzShape,
    text: Int[np.ndarray, " T"],
    vocab_size: int,
) -> int:
    """Returns the number of drafted tokens that are right, in the part of the tree that is kept."""
    level: dict[int, int] = {0: 0}
    children: dict[int, dict[int, int]] = {0: {}}
    for node in range(1, len(tokens)):
        above, token = int(parents[node]), int(tokens[node])
        sound = valid[node] and 0 <= above < node and above in level
        known = 0 <= token < vocab_size and (value is None or not np.isnan(value[node]))
        # Equal siblings are one node: the first.
        if sound and known and level[above] < shape.depth and token not in children[above]:
            level[node], children[node] = level[above] + 1, {}
            children[above][token] = node
    node = 0
    for done, token in enumerate(text.tolist()):
        read = dict(list(children[node].items())[: shape.width])
        if token not in read:
            return done
        node = read[token]
    return len(text)
