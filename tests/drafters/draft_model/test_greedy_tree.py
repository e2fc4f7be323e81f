"""DySpec's greedy tree (Xiong et al. 2024, appendix D) is worth most, by enumeration.

The drafter's tree is the oracle's, see `tests/drafters/draft_model/test_trees_of_draft_models.py`.
"""

import numpy as np
import oracle
import pytest

VOCAB = 3


def random_model(seed):
    """(prefix -> distribution, prefix -> order in which tokens are drawn from it)."""

    def q(prefix):
        own = np.random.default_rng([seed, 7, *prefix])
        return own.dirichlet(np.full(VOCAB, 0.5))

    def orders(prefix):
        own = np.random.default_rng([seed, 11, *prefix])
        return own.choice(VOCAB, VOCAB, replace=False, p=q(prefix)).tolist()

    return q, orders


def value(q, orders, slot):
    """The probability that the child of a rank below a prefix is tried: equations 9 to 11."""
    prefix, rank = slot
    reached = np.prod([q(prefix[:depth])[token] for depth, token in enumerate(prefix)])
    return reached * (1 - q(prefix)[orders(prefix)[:rank]].sum())


def every_set(orders, size):
    """All sets of so many slots in which a slot's parent and its earlier siblings are."""
    found = {frozenset({((), 0)})}
    for _ in range(size - 1):
        grown = set()
        for slots in found:
            for prefix, rank in slots:
                below = (*prefix, orders(prefix)[rank])
                more = [(below, 0)] + [(prefix, rank + 1)] * (rank + 1 < VOCAB)
                grown |= {slots | {slot} for slot in more if slot not in slots}
        found = grown
    return found


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_tree_of_as_many_nodes_is_worth_more(seed, size):
    q, orders = random_model(seed)
    children = oracle.children_of(oracle.dyspec_greedy(q, orders, size))
    chosen = {(prefix, rank) for prefix, drawn in children.items() for rank in range(len(drawn))}
    values = [sum(value(q, orders, slot) for slot in slots) for slots in every_set(orders, size)]
    assert sum(value(q, orders, slot) for slot in chosen) == pytest.approx(max(values))
    assert len(values) > 1
    assert min(values) < max(values)
