import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree as trees
from jspec.drafters.growth.union import union
from jspec.types import Tree


def paths(tree, row):
    """The set of token paths of the present nodes."""
    found = []
    for node in range(tree.tokens.shape[1]):
        if tree.valid[row, node]:
            path, at = [], node
            while at != -1:
                assert tree.valid[row, at]
                path.append(int(tree.tokens[row, at]))
                at = int(tree.parents[row, at])
            found.append(tuple(path[::-1]))
    return found


def test_the_union_has_every_path_once():
    rng = np.random.default_rng(0)
    a_shape = trees.Template(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
    for _ in range(20):
        # Distinct siblings in each tree, shared prefixes between them.
        a = a_shape.fill(jnp.asarray([[9, 0, 1, *rng.permutation(2), 0]] * 2))
        b = trees.chain(4).fill(jnp.asarray([[9, *rng.integers(0, 3, 4)] for _ in range(2)]))
        length = rng.integers(0, 5, (2, 1))
        b = b.replace(valid=jnp.asarray(np.arange(5) <= length))
        both, number = union(a, b)
        assert both.tokens.shape[1] == a.tokens.shape[1] + b.tokens.shape[1] - 1
        for row in range(2):
            got = paths(both, row)
            assert len(got) == len(set(got))
            assert set(got) == set(paths(a, row)) | set(paths(b, row))
        # Every node of b is in the union under its number, with its token.
        there = np.take_along_axis(np.asarray(both.tokens), np.asarray(number), axis=1)
        assert (there == np.asarray(b.tokens))[np.asarray(b.valid)].all()


def test_a_child_that_holds_the_roots_token_is_not_the_root():
    """Text such as "0000": found, and all of b hung a level too deep, beyond the declared depth."""
    a = trees.chain(2).fill(jnp.array([[7, 7, 7]]))
    b = trees.chain(2).fill(jnp.array([[7, 1, 2]]))
    both, number = union(a, b)
    assert both.parents.tolist() == [[-1, 0, 1, 0, 3]]
    assert number.tolist() == [[0, 3, 4]]
    assert np.asarray(trees.depths(both))[np.asarray(both.valid)].max() == both.depth == 2


def test_a_sampled_tree_is_refused():
    tree = trees.root_only(jnp.array([1]))
    sampled = tree.replace(q=jnp.ones((1, 1, 4)) / 4)
    with pytest.raises(ValueError, match="sampled distribution"):
        union(tree, sampled)


def test_depth_and_width_bound_the_union():
    a, b = trees.branching([2]).fill(jnp.zeros((1, 3), int)), trees.chain(3)
    both, _ = union(a, b.fill(jnp.zeros((1, 4), int)))
    assert isinstance(both, Tree)
    assert (both.depth, both.width) == (3, 3)
