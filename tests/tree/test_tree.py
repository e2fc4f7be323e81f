import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals

from jspec import tree as trees
from jspec.tree import parts
from jspec.types import Tree


def lineage(parents, node):
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path[::-1]


def random_tree(rng, batch, nodes):
    parents = np.full((batch, nodes), -1)
    for row in range(batch):
        for node in range(1, nodes):
            parents[row, node] = rng.integers(0, node)
    depth = max(len(lineage(p, n)) - 1 for p in parents for n in range(nodes))
    return Tree(
        tokens=jnp.zeros((batch, nodes), jnp.int32), parents=jnp.asarray(parents),
        valid=jnp.ones((batch, nodes), bool), depth=depth, width=nodes - 1,
    )  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 9])
def test_ancestors_and_depths_are_those_of_a_loop(nodes):
    tree = random_tree(np.random.default_rng(0), 3, nodes)
    mask, depths = trees.ancestors(tree), trees.depths(tree)
    for row in range(3):
        for node in range(nodes):
            above = lineage(np.asarray(tree.parents[row]), node)
            assert np.flatnonzero(mask[row, node]).tolist() == sorted(above)
            assert depths[row, node] == len(above) - 1


@pytest.mark.parametrize("depth", [1, 4, 24])
def test_values_joined_along_paths_are_those_of_a_walk_on_every_device(depth):
    """GPUs follow paths, CPUs go by levels; on both a child is at most as likely as its parent."""
    rng = np.random.default_rng(depth)
    parents = np.full((2, 60), -1)
    level = np.zeros((2, 60), int)
    for row in range(2):
        for node in range(1, 60):
            above = rng.choice(np.flatnonzero(level[row, :node] < depth)[-3:])
            parents[row, node], level[row, node] = above, level[row, above] + 1
    assert level.max() == depth
    # Probabilities of exactly one, below which rounding alone could raise a product.
    probs = np.where(rng.random((2, 60)) < 0.3, 1, rng.random((2, 60))).astype(np.float32)
    probs[:, 0] = 1
    paths = [[lineage(parents[row], node) for node in range(60)] for row in range(2)]
    least = [[probs[row][path].min() for path in paths[row]] for row in range(2)]
    product = [[probs[row][path].prod(dtype=float) for path in paths[row]] for row in range(2)]
    given = jnp.asarray(parents), probs
    for by in (parts._by_levels, parts._by_paths):
        np.testing.assert_array_equal(by(*given, jnp.minimum, depth), least)
    found = np.asarray(trees.path_probabilities(*given, depth))
    np.testing.assert_array_equal(parts._by_paths(*given, jnp.multiply, depth), found)
    np.testing.assert_allclose(found, product, rtol=1e-5)
    above = np.take_along_axis(found, np.maximum(parents, 0), 1)
    assert (found <= above).all()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_walks_along_paths_have_no_loop_on_a_gpu(platform):
    def program(parents, probs):
        return trees.path_probabilities(parents, probs, 24), trees.places(parents, parents)

    shapes = jax.ShapeDtypeStruct((1, 64), jnp.int32), jax.ShapeDtypeStruct((1, 64), jnp.float32)
    lowered = jax.jit(program).trace(*shapes).lower(lowering_platforms=(platform,))
    assert "stablehlo.while" not in lowered.as_text()


def test_paths_by_leaps_are_those_by_levels():
    rng = np.random.default_rng(2)
    parents = np.array(
        [[-1, *(int(rng.integers(max(i - 3, 0), i)) for i in range(1, 20))] for _ in range(4)]
    )
    for depth in (2, 5, 19):  # too small ones as well
        given = jnp.asarray(parents), depth
        found = trees._paths_by_leaps(*given)
        np.testing.assert_array_equal(found, trees._paths_by_levels(*given))
        assert found.shape == (4, 20, depth + 1)


def test_the_first_entry_of_each_place_is_found_either_way(monkeypatch):
    rng = np.random.default_rng(4)
    places = rng.integers(0, 14, (3, 9))  # some of them beyond the last
    wanted = [
        [next((i for i in range(9) if row[i] == place), 9) for place in range(12)] for row in places
    ]
    assert trees.first_at(jnp.asarray(places), 12).tolist() == wanted
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *given, cpu, default: default(*given))
    assert trees.first_at(jnp.asarray(places), 12).tolist() == wanted


def test_children_keep_their_order_and_skip_absent_nodes():
    parents = jnp.array([-1, 0, 0, 1, 0, 2])
    valid = jnp.array([True, True, False, True, True, False])
    assert trees.children(parents, valid, jnp.int32(0), 3).tolist() == [1, 4, 6]
    assert trees.children(parents, valid, jnp.int32(2), 3).tolist() == [6, 6, 6]


def test_templates():
    assert trees.chain(3).paths == ((0,), (0, 0), (0, 0, 0))
    assert trees.branching([2, 1]).paths == ((0,), (1,), (0, 0), (1, 0))
    shuffled = trees.Template(((1, 0), (0,), (1,)))
    assert shuffled.paths == ((0,), (1,), (1, 0))
    assert shuffled.parents.tolist() == [-1, 0, 0, 2]
    assert shuffled.ranks.tolist() == [0, 0, 1, 0]
    assert trees.Template(()).num_nodes == 1
    assert trees.Template(()).depth == 0


def size_of(parents, valid, node):
    below = [child for child, parent in enumerate(parents) if parent == node and valid[child]]
    return 1 + sum(size_of(parents, valid, child) for child in below)


def as_they_are(parents, valid, node):
    return node


def heavy(parents, valid, node):
    return -size_of(parents, valid, node)


def preorder(parents, valid, key, node=0):
    below = [child for child, parent in enumerate(parents) if parent == node and valid[child]]
    below.sort(key=lambda child: key(parents, valid, child))
    return [node] + [found for child in below for found in preorder(parents, valid, key, child)]


def levels(parents, valid):
    found, level = [], [0]
    while level:
        found += level
        level = [c for node in level for c, up in enumerate(parents) if up == node and valid[c]]
    return found


@pytest.mark.parametrize(("ordered", "walked"), [
    (trees.depth_first, lambda *tree: preorder(*tree, as_they_are)),
    (trees.heavy_paths, lambda *tree: preorder(*tree, heavy)), (trees.breadth_first, levels),
], ids=["depth first", "heavy paths", "breadth first"])  # fmt: skip
def test_an_order_is_that_of_a_walk_through_the_same_tree(ordered, walked):
    rng = np.random.default_rng(3)
    ordered, again = jax.jit(ordered), jax.jit(trees.reorder)
    moved = False
    for _ in range(20):
        parents = np.array([-1, *(int(rng.integers(0, node)) for node in range(1, 9))])
        valid = rng.random(9) < 0.8
        valid[0] = True
        for node in range(1, 9):
            valid[node] &= valid[parents[node]]
        tree = Tree(
            tokens=jnp.asarray(rng.permutation(9)[None]), parents=jnp.asarray(parents[None]),
            valid=jnp.asarray(valid[None]), depth=8, width=8,
        )  # fmt: skip
        order = np.asarray(ordered(tree))
        live = int(valid.sum())
        assert order[0, :live].tolist() == walked(parents, valid)
        assert sorted(order[0].tolist()) == list(range(9))
        moved |= order[0].tolist() != list(range(9))
        other = jax.device_get(again(tree, order))
        for place in range(1, live):
            node = int(order[0, place])
            above = int(other.parents[0, place])
            assert above < place
            assert int(order[0, above]) == parents[node]
            assert other.tokens[0, place] == tree.tokens[0, node]
    assert moved


def test_nan_value_nodes_are_pruned():
    tree = Tree(
        tokens=jnp.array([[7, 1, 2, 3]]), parents=jnp.array([[-1, 0, 0, 1]]),
        valid=jnp.ones((1, 4), bool), value=jnp.array([[1.0, jnp.nan, 0.5, jnp.nan]]), depth=2,
        width=2,
    )  # fmt: skip
    for nodes in (1, 2, 3):
        kept = jax.jit(trees.best, static_argnums=1)(tree, nodes)
        assert kept.tokens[0, 0] == 7
        assert kept.parents[0, 0] == -1
        np.testing.assert_array_equal(kept.tokens[kept.valid], [7, 2])


@pytest.mark.parametrize("rows", [None, [[0, 0, 2, 1, 2]]])
def test_nodes_take_the_distributions_of_their_children_along(rows):
    """Whichever way `q_row` says whose they are."""
    tree = trees.branching([2, 1]).fill(jnp.array([[5, 6, 7, 8, 9]]))
    q = jnp.arange(5.0)[None, :, None] * jnp.ones(3)
    rows = None if rows is None else jnp.array(rows)
    tree = tree.replace(q=q, q_row=rows, value=jnp.array([[1.0, 0.5, 0.9, 0.4, 0.8]]))

    def own(tree):
        row = jnp.arange(tree.tokens.shape[1])[None] if tree.q_row is None else tree.q_row
        held = jnp.take_along_axis(tree.q[..., 0], row, axis=1)
        return dict(zip(tree.tokens[0].tolist(), held[0].tolist(), strict=True))

    whole = own(tree)
    moved = jax.jit(lambda tree: trees.reorder(tree, trees.depth_first(tree)))
    assert own(moved(tree)) == whole
    part = own(jax.jit(trees.best, static_argnums=1)(tree, 2))
    assert part == {token: whole[token] for token in (5, 7, 9)}


def test_templates_that_are_no_trees_are_refused():
    rank = "a rank of the tree template is "
    refusals.check([
        (((0,), (0,)), "twice"), (((),), "empty"), (((0, 1),), "parent"),
        (((-1,),), rank + "-1; pass an integer in 0 .. 1048575"),
        (((10**12,),), rank + "1000000000000"), (((0.5,),), rank + "0.5"),
    ], trees.Template)  # fmt: skip
    refusals.check([
        (lambda: trees.chain(-1), "length is -1; pass an integer of at least 0"),
        (lambda: trees.chain(2.5), "length is 2.5"),
        (lambda: trees.branching(3), "factors is 3; pass the children of a node"),
        (lambda: trees.branching([2, 0]), "a factor is 0; pass an integer of at least 1"),
        (lambda: trees.likeliest([], 2), "acceptance is"),
        (lambda: trees.likeliest([0.5], -1), "num_speculative_tokens is -1"),
        (lambda: trees.chain(2).fill(jnp.zeros((1, 2), jnp.int32)),
         r"the template has 3 nodes, .*; pass \[B, 3\]"),
        (lambda: trees.best(CHAIN, -1), "nodes is -1; pass an integer of at least 0"),
        (lambda: trees.best(CHAIN, 1), "the tree has no values"),
    ])  # fmt: skip


CHAIN = trees.chain(2).fill(jnp.array([[5, 6, 7]]))
