"""Checks of trees as drafted, for nodes that the engine would silently take for absent."""

from typing import Any

import numpy as np

from jspec.testing.promises import Report, promise
from jspec.testing.watch import Log
from jspec.types import NO_PARENT

NO_GUESS = -1
"""The token of a node for which a drafter has no guess."""


def check_trees(log: Log, tree: Any, vocab_size: int, report: Report) -> None:
    """Checks the trees of every round for nodes that the engine would silently take for absent."""
    absent = twins = total = 0
    for turn, row in np.argwhere(~log.done).tolist():
        tokens, parents, valid = (x[turn, row] for x in (log.tokens, log.parents, log.valid))
        where = f"a tree is a tree: round {turn}, row {row}"
        promise(
            tokens[0] == log.root[turn, row],
            f"{where}: node 0 should be the last emitted token, {log.root[turn, row]}, and is "
            f"{tokens[0]}",
        )
        promise(
            parents[0] == NO_PARENT and valid[0],
            f"{where}: node 0 should be there with the parent -1; its parent is {parents[0]} and "
            f"valid is {valid[0]}",
        )
        value = None if log.value is None else log.value[turn, row]
        depth, children = {0: 0}, {0: []}
        for node in np.flatnonzero(valid)[1:].tolist():
            above, token = int(parents[node]), int(tokens[node])
            promise(
                0 <= above < node,
                f"{where}: the parent of node {node} should be an earlier node and is {above}",
            )
            if above not in depth or token == NO_GUESS:
                absent += 1
                continue
            promise(
                0 <= token < vocab_size,
                f"{where}: node {node} should hold a token of the vocabulary, 0 to "
                f"{vocab_size - 1}, or -1 where there is no guess, and holds {token}",
            )
            depth[node], children[node] = depth[above] + 1, []
            promise(
                depth[node] <= tree.depth,
                f"{where}: node {node} is {depth[node]} deep and the tree's declared depth is "
                f"{tree.depth}",
            )
            if value is not None:
                promise(
                    0 <= value[node] <= 1 + 1e-5,
                    f"{where}: the value of node {node} should lie in 0 .. 1 and is {value[node]}",
                )
            twins += token in children[above]
            total += 1
            children[above].append(token)
            promise(
                len(children[above]) <= tree.width,
                f"{where}: node {above} has more children than the declared width, {tree.width}",
            )
    report.checked.append("trees are trees, as they were drafted")
    if absent:
        report.remarks.append(
            f"{absent} of {absent + total} drafted nodes were absent, without a guess or below such"
        )
    if twins:
        report.remarks.append(
            f"{twins} of {total} drafted nodes repeat the token of an earlier sibling: the target "
            "scores them for nothing"
        )
