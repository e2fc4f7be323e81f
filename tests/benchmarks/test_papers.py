"""Computations of the papers' benches besides decoding: trees, blocks, rules."""

import jax
import numpy as np
import oracle
import pytest
import refusals

from benchmarks import rollouts
from benchmarks.dyspec import blocks, rates
from benchmarks.recycling import settings
from benchmarks.rsd import verifiers
from jspec.tree.template import Template


def test_trees_of_figure_3_have_exactly_so_many_nodes_and_levels():
    shapes = [(nodes, 6) for nodes in settings.BREADTHS]
    shapes += [(80, depth) for depth in settings.DEPTHS]
    for nodes, depth in shapes:
        template = Template(settings.grown(nodes, depth))
        assert (template.num_nodes - 1, template.depth) == (nodes, depth)


def test_blocks_are_those_that_hold_an_entry():
    random = np.random.default_rng(3)
    parents = blocks.recursive(random, 70)
    for order in blocks.ORDERS.values():
        places = order(parents)
        assert sorted(places) == list(range(70))
        where = np.argsort(places)
        above = parents[1:]
        assert (where[above] < where[1:]).all()  # a parent comes before its children
        mask = blocks.mask(parents)[np.ix_(places, places)]
        found = {(i // 32, j // 32) for i, j in zip(*np.nonzero(mask), strict=True)}
        assert blocks.blocks(parents, places) == len(found)
        # Every node reads the prefix: 3 rows of blocks, of 2 columns.
        assert blocks.blocks(parents, places, prefix=64) == len(found) + 6


def test_first_children_of_figure_2_fall_into_their_columns():
    half = np.array([[0.5, 0.1], [0.5, 0.2], [0.95, 0.0]])
    seen = rates.Tried(half, half, half * 0.5, np.array([[1, 1], [1, 1], [1, 0]]))
    found = rates.counted(seen)
    density = np.array(found["density"]["target"])
    assert density.sum() == 3 and density[8, 4] == 2 and density[15, 7] == 1
    assert found["correlation"]["acceptance"] == pytest.approx(1)
    assert found["means"]["acceptance"][1][1][1] == 1.0 and found["places"] == 3


def test_the_best_of_independent_children_is_that_of_all_sets_of_tokens():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for zeros, number in [(0, 1), (0, 2), (2, 3), (3, 2)]:
            p, q = rng.dirichlet(np.ones(6), 2)
            for one in (p, q):
                one[rng.permutation(6)[:zeros]] = 0
            p, q = p / p.sum(), q / q.sum()
            found = float(verifiers.optimal(number, p, q))
            assert found == pytest.approx(oracle.optimal_acceptance(p, q, number), abs=1e-12)


def test_steps_of_rollouts_are_rising_numbers():
    assert rollouts._distances("16, 1,4,1") == [1, 4, 16]
    cases = [(steps, r"--steps is '.*'; pass numbers from 0 on") for steps in ("", "1,", "-1", "x")]
    refusals.check(cases, rollouts._distances)
