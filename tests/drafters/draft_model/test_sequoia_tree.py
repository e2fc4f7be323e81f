"""Sequoia's program against its published figures, a second program, and all trees."""

import itertools

import numpy as np
import oracle
import pytest
import refusals
from oracle.sequoia import tokens_by_depth

from jspec.drafters.draft_model import sequoia_tree
from jspec.tree import chain

# What is published of the stored vector; 23 ranks of 0.0509 in all are not.
PRINTED = np.array([0.6342, 0.1079, 0.0570, 0.0225, 0.0195, 0.0150, 0.0045, 0.0030, 0.0120])
REFUSED = 0.0735
HALF_A_DIGIT = 5e-5


def bounds(figure):
    """Returns the range of `figure(acceptance)`, which grows with it, over the whole vector.

    From below there is no tail and every digit was rounded up; from above all of the tail is one
    more rank, the best it can be, and every digit was rounded down.
    """
    tail = 1 - REFUSED - PRINTED.sum()
    return figure(PRINTED - HALF_A_DIGIT), figure(np.append(PRINTED, tail) + HALF_A_DIGIT)


@pytest.mark.parametrize(
    ("nodes", "published", "slack"),
    [(2, 1.6342, 1e-4), (4, 2.2914, 4e-4), (8, 2.7322, 8e-4), (16, 3.1303, 1.3e-3),
     (32, 3.5007, 0.01), (64, 3.8523, 0.11)],
)  # fmt: skip
def test_published_values(nodes, published, slack):
    """The root counts in what is published.

    Up to 16 nodes the tail is useless and the digits decide. At 32 it could add 0.008 and at
    64 0.1; as printed, without it, all values come out to 1e-4 and the tail adds nothing.
    """

    def tokens(acceptance):
        return sequoia_tree.solve(acceptance, nodes - 1, 9).tokens[nodes - 1, 9]

    least, most = bounds(tokens)
    assert least < published < most
    assert most - least < slack + HALF_A_DIGIT
    assert tokens(PRINTED) == pytest.approx(published, abs=1.5e-4)


def test_published_tree():
    """Six levels are five, and 16 nodes are 15, without the root."""
    table = sequoia_tree.solve(PRINTED, 15, 5)
    least, most = bounds(lambda acceptance: sequoia_tree.solve(acceptance, 15, 5).tokens[15, 5])
    assert least < 3.0876 < most and table.tokens[15, 5] == pytest.approx(3.0876, abs=HALF_A_DIGIT)
    paths = "0 1 2 00 01 02 10 20 000 001 010 100 0000 1000 00000"
    expected = tuple(tuple(map(int, path)) for path in paths.split())
    # Orders of the same ranks have the same value, so it is the values that are unique.
    assert sorted(map(sorted, table.template(15, 5).paths)) == sorted(map(sorted, expected))


def test_published_choice():
    """Sequoia's demo, which counts the root's level as one more forward pass of the draft model."""
    demo = {1: 10.0, 2: 10.0, 4: 10.0, 8: 12.0, 16: 14.0, 32: 18.0}
    demo = {nodes - 1: time for nodes, time in demo.items()}  # Sequoia counts the root
    costs = {nodes: time + 0.3 for nodes, time in demo.items()}
    most, least = bounds(lambda acceptance: sequoia_tree.choose(acceptance, costs, 0.3, 9).time)
    assert least < 4.8878 < most and most - least < 1e-3
    nodes, depth, time = sequoia_tree.choose(PRINTED, costs, 0.3, 9)
    assert (nodes, depth) == (3, 3)
    assert sequoia_tree.best_template(PRINTED, nodes, depth) == chain(3)
    assert demo[0] / time == pytest.approx(2.046, abs=5e-4)
    # Our own count of forward passes: one fewer.
    assert sequoia_tree.choose(PRINTED, demo, 0.3, 9).time == pytest.approx(time * 10.9 / 11.2)


def vectors(count):
    """Acceptance vectors: falling or not, with zeros, sure, of a single rank."""
    rng = np.random.default_rng(0)
    yield from (np.array([1.0]), np.array([0.3]), np.array([0.0, 0.0]), np.array([0.0, 0.5, 0.2]))
    for _ in range(count):
        probabilities = rng.dirichlet(np.ones(rng.integers(2, 5)))[:-1]
        probabilities[rng.uniform(size=probabilities.shape) < 0.2] = 0
        yield probabilities


def shape(paths, above=()):
    """The oracle's nested tuples, from paths."""
    below = sorted(path for path in paths if path[:-1] == above)
    assert [path[-1] for path in below] == list(range(len(below)))
    return tuple(shape(paths, path) for path in below)


def test_no_tree_is_better():
    """All trees of up to 8 nodes, one by one; acceptance may depend on the depth."""
    rng = np.random.default_rng(2)
    by_depth = [rng.dirichlet(np.ones(4), levels)[:, :-1] for levels in (2, 3, 5)]
    for probabilities in (*vectors(8), *by_depth):
        rows = np.atleast_2d(probabilities).tolist()
        table = sequoia_tree.solve(probabilities, 7, 4)
        for nodes, depth in itertools.product(range(8), range(1, 5)):
            if len(rows) > 1:  # whose table is of trees of that depth alone
                table = sequoia_tree.solve(probabilities, nodes, depth)
            shapes = oracle.sequoia_shapes(nodes + 1, depth, len(rows[0]))
            values = [tokens_by_depth(rows, tree) for tree in shapes]
            best = max(values, default=-np.inf)
            assert table.tokens[nodes, depth] == pytest.approx(best, abs=1e-12)
            if values:
                template = table.template(nodes, depth)
                assert template.num_nodes == nodes + 1 and template.depth <= depth
                own = tokens_by_depth(rows, shape(template.paths))
                assert own == pytest.approx(best, abs=1e-12)


def test_the_choice_is_the_fastest_of_all():
    rng = np.random.default_rng(1)
    for probabilities in vectors(8):
        costs = {int(n): float(t) for n, t in zip((0, 2, 3, 6), rng.uniform(1, 2, 4), strict=True)}
        found = sequoia_tree.choose(probabilities, costs, 0.1, 4)
        times = [
            (depth * 0.1 + time) / oracle.sequoia_tokens(probabilities, tree)
            for nodes, time in costs.items()
            for depth in range(5)
            for tree in oracle.sequoia_shapes(nodes + 1, depth, len(probabilities))
        ]
        assert found.time == pytest.approx(min(times), abs=1e-12)


COSTS = {0: 1.0, 3: 2.0}
SOLVE, CHOOSE = sequoia_tree.solve, sequoia_tree.choose
MISFITS = [
    (lambda: SOLVE([], 4, 2), r"shape \(0,\); pass one probability"),
    (lambda: SOLVE([[[0.5]]], 4, 2), r"shape \(1, 1, 1\); pass one probability"),
    (lambda: SOLVE([[0.5, 0.2], [0.6, 0.5]], 4, 2), r"sums to 1\.100000, above 1;"),
    (lambda: SOLVE([0.5, -0.1], 4, 2), r"-0\.1; pass probabilities, 0 \.\. 1"),
    (lambda: SOLVE([1.5], 4, 2), r"1\.5; pass probabilities, 0 \.\. 1"),
    (lambda: SOLVE([float("nan")], 4, 2), "nan; pass probabilities"),
    (lambda: SOLVE([0.6, 0.5], 4, 2), r"sums to 1\.100000, above 1;.*unconditional"),
    (lambda: SOLVE([0.5], -1, 2), "tokens is -1; pass an integer of at least 0"),
    (lambda: SOLVE([0.5], 2.5, 2), "tokens is 2.5; pass an integer"),
    (lambda: SOLVE([0.5], 4, 0), "max_depth is 0; pass an integer of at least 1"),
    (lambda: sequoia_tree.best_template([0.5], 3, 2), "is 3, but 1 children.*at most 2; ask"),
    (lambda: SOLVE([0.5], 3, 2).template(4, 2), r"is 4; .* 0 \.\. 3, where the table ends; solve"),
    (lambda: SOLVE([0.5], 3, 2).template(3, 3), r"is 3; .* 1 \.\. 2, where the table ends; solve"),
    (lambda: CHOOSE([0.5], {}, 0.1, 2), "target_cost is empty; pass"),
    (lambda: CHOOSE([0.5], {-1: 1.0}, 0.1, 2), "size that is -1; pass"),
    (lambda: CHOOSE([0.5], {1: 0.0}, 0.1, 2), r"cost\[1\] is 0.0; pass .* 0 < x"),
    (lambda: CHOOSE([0.5], COSTS, -0.1, 2), "draft_cost is -0.1; pass a number"),
    (lambda: CHOOSE([0.5], COSTS, 0.1, 0), "max_depth is 0; pass an integer"),
    (lambda: CHOOSE([0.5], {3: 2.0}, 0.1, 2), "begins at 3 nodes, but.*smaller trees"),
]  # fmt: skip


def test_bad_input_says_the_value_and_the_fix():
    refusals.check(MISFITS, error=ValueError)


def test_measured_probabilities_may_round_above_one():
    assert sequoia_tree.best_template([0.5, 0.5 + 5e-7], 2, 1).paths == ((0,), (1,))
