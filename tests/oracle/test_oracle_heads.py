"""The oracles of trees from draft heads, held to what the papers say of them."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.models.heads.lyanna import LyannaConfig, LyannaHead, collapse, table_bytes
from oracle import eagle, lyanna

V = 12


@pytest.fixture(params=range(4))
def rng(request):
    return np.random.default_rng(request.param)


def info_of(rng):
    table = rng.normal(size=(V, V))
    return lambda token: table[token]


def closed(nodes):
    paths = [path for path, _ in nodes]
    return len(set(paths)) == len(paths) and all(
        len(path) == 1 or path[:-1] in paths[:place] for place, path in enumerate(paths)
    )


def test_lyanna_s_whole_tree_has_its_published_size(rng):
    for levels, k, size in [(3, 4, 36), (1, 5, 5), (4, 2, 14), (3, 1, 3)]:
        nodes = lyanna.listed(
            lyanna.build_subtree(rng.normal(size=(levels, V)), 3, k, info_of(rng))
        )
        assert len(nodes) == size == k + (levels - 1) * k**2
        assert closed(nodes)


def test_lyanna_s_joints_are_products_of_distributions_given_the_parent(rng):
    logits, info = rng.normal(size=(3, V)), info_of(rng)
    for path, joint in lyanna.listed(lyanna.build_subtree(logits, 3, 4, info)):
        expected = 1.0
        for level, (parent, token) in enumerate(zip((3, *path), path, strict=False)):
            scores = np.exp(logits[level] + info(parent))
            expected *= scores[token] / scores.sum()
        assert joint == pytest.approx(expected, rel=1e-12)


def test_lyanna_s_first_frontier_is_complete_and_the_next_is_the_best(rng):
    logits, info = 0.3 * rng.normal(size=(3, V)), info_of(rng)
    nodes = lyanna.listed(lyanna.build_subtree(logits, 3, 4, info))
    second = sorted((joint, path) for path, joint in nodes if len(path) == 2)
    parents = {path[:2] for path, _ in nodes if len(path) == 3}
    assert len(second) == 16
    assert parents == {path for _, path in second[-4:]}


def test_lyanna_s_pruned_tree_is_prefix_closed(rng):
    for budget in [1, 5, 11, 12, 16, 36, 99]:
        nodes = lyanna.listed(lyanna.build_subtree(rng.normal(size=(3, V)), 3, 4, info_of(rng)))
        kept = lyanna.prune(nodes, budget)
        assert len(kept) == min(budget, 36)
        assert closed(kept)
        left = [joint for node in nodes if node not in kept for joint in node[1:]]
        assert min(joint for _, joint in kept) >= max(left, default=0)


def test_ties_are_broken_by_depth():
    """Checks that a path's joints are all 1 where one token is certain."""
    logits = np.full((3, V), -1e9)
    logits[:, 5] = 0
    nodes = lyanna.listed(lyanna.build_subtree(logits, 3, 2, lambda token: np.zeros(V)))
    assert [path for path, _ in lyanna.prune(nodes, 2)] == [(5,), (5, 5)]
    assert [path for path, _ in lyanna.prune(nodes, 4)] == [(5,), (0,), (5, 5), (5, 5, 5)]


def test_resampling_reads_what_is_left(rng):
    for accepted, left in [(0, 2), (1, 1), (2, 0), (3, 0)]:
        logits, info = rng.normal(size=(3, V)), info_of(rng)
        rows = lyanna.reusable(logits, accepted)
        assert len(rows) == left == max(3 - accepted - 1, 0)
        for threshold in range(3):
            tree = lyanna.listed(lyanna.resample(rows, 7, 4, info, threshold))
            assert len(tree) == (4 + (left - 1) * 16 if left > threshold else 0)
        # The first level is the second of the draft's, with another parent.
        if left:
            probs = lyanna.softmax(logits[accepted + 1] + info(7))
            again = lyanna.listed(lyanna.resample(rows, 7, 4, info, 0))
            assert again[0] == ((int(probs.argmax()),), probs.max())


def test_fused_trees_have_each_path_once(rng):
    info = info_of(rng)
    fresh = lyanna.listed(lyanna.build_subtree(rng.normal(size=(3, V)), 7, 4, info))
    again = lyanna.listed(lyanna.resample(rng.normal(size=(2, V)), 7, 4, info, 0))
    both = lyanna.fuse(lyanna.prune(fresh, 11), lyanna.prune(again, 6))
    assert closed(both)
    paths = {path for path, _ in both}
    assert {path for path, _ in lyanna.prune(fresh, 11)} <= paths
    assert {path for path, _ in lyanna.prune(again, 6)} <= paths
    assert len(both) <= 17
    assert lyanna.fuse(fresh, fresh) == fresh


def test_token_info_is_that_of_the_head_factored_and_collapsed():
    """`LyannaHead.inform` from W1 W2, from the table and from its factors, some or all hot."""
    for hot in [(), (1, 2, 5, 8, 11)]:
        head = LyannaHead(LyannaConfig(V, 8, 12, 1, 2, 1, 4, 32, rank=3, hot_tokens=len(hot)))
        one = jnp.zeros((1, 1), jnp.int32)
        inputs = jnp.zeros((1, 1, 8)), one, one, one[..., None] == 0
        fresh = jax.eval_shape(head.init, jax.random.key(0), *inputs)
        rng = np.random.default_rng(len(hot))
        variables = jax.tree.map(
            lambda x, rng=rng: rng.normal(size=x.shape).astype(np.float32), fresh
        )
        if hot:
            variables["hot"]["info"]["ids"] = jnp.asarray(hot, jnp.int32)
        logits = jnp.asarray(rng.normal(size=(1, V, V)), jnp.float32)
        info, embed = variables["params"]["info"], variables["target"]["embed"]
        weights = (embed, info["down"], info["up"], info["scale"], 1e-6, hot or None)
        expected = [logits[0, token] + lyanna.token_info(token, *weights) for token in range(V)]
        whole, narrow = collapse(head, variables), collapse(head, variables, max_bytes=0)
        assert "rows" in whole["table"]["info"] and "codes" in narrow["table"]["info"]
        for given in (variables, whole, narrow, collapse(head, narrow)):
            found = head.inform(given, logits, jnp.arange(V)[None])[0]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        # In fewer bits each entry is off by at most half a step: of its row, or of its own size.
        largest = np.abs(np.array(expected) - np.asarray(logits[0])).max(-1, keepdims=True)
        for dtype, error in (("int8", largest / 127 / 2), ("float16", largest * 2.0**-11)):
            table = collapse(head, variables, dtype)
            assert table["table"]["info"]["rows"].dtype == dtype
            gap = np.abs(head.inform(table, logits, jnp.arange(V)[None])[0] - np.array(expected))
            assert (gap <= 1.001 * error + 1e-5).all() and gap.max() > 1e-5


def test_a_table_has_at_most_the_bytes_that_are_allowed():
    config = LyannaConfig(V, 8, 12, 1, 2, 1, 4, 32, rank=3, hot_tokens=4)
    assert [table_bytes(config, dtype) for dtype in ("float32", "float16", "int8")] == [64, 32, 16]
    head = LyannaHead(config)
    one = jnp.zeros((1, 1), jnp.int32)
    inputs = jnp.zeros((1, 1, 8)), one, one, one[..., None] == 0
    fresh = jax.eval_shape(head.init, jax.random.key(0), *inputs)
    variables = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), fresh)
    assert "rows" in collapse(head, variables, "float16", 32)["table"]["info"]
    assert "codes" in collapse(head, variables, "float16", 31)["table"]["info"]
    with pytest.raises(ValueError, match="max_bytes"):
        collapse(head, variables, "float16", -1)


def scores_of(rng):
    """Random scores of what follows each path, the same whenever they are asked for."""

    @cache
    def scores(path):
        return 2 * np.random.default_rng([*path, 99]).normal(size=V)

    return scores


def test_eagle_s_expansion_has_its_published_size(rng):
    for depth, k in [(0, 3), (2, 3), (5, 4)]:
        candidates = eagle.expand(scores_of(rng), depth, k)
        assert len(candidates) == k + depth * k**2
        assert closed(candidates)
        assert max(len(path) for path, _ in candidates) == depth + 1


def test_eagle_s_reranked_tree_is_the_best_and_closed(rng):
    for total in [2, 8, 26, 40]:
        candidates = eagle.expand(scores_of(rng), 3, 4)
        kept = eagle.rerank(candidates, total)
        assert len(kept) == total - 1
        assert closed(kept)
        best = sorted((joint for _, joint in candidates), reverse=True)[: total - 1]
        assert sorted((joint for _, joint in kept), reverse=True) == best


def test_lyanna_s_tree_is_eagle_s_where_scores_depend_on_parent_and_depth(rng):
    """Algorithm 1 is EAGLE-2's expansion over such scores, pruning its rerank."""
    logits, info = rng.normal(size=(3, V)), info_of(rng)

    def scores(path):
        return logits[len(path)] + info(path[-1] if path else 3)

    candidates = eagle.expand(scores, 2, 4)
    nodes = lyanna.listed(lyanna.build_subtree(logits, 3, 4, info))
    assert [path for path, _ in candidates] == [path for path, _ in nodes]
    np.testing.assert_allclose(np.exp([j for _, j in candidates]), [j for _, j in nodes])
    kept, pruned = eagle.rerank(candidates, 12), lyanna.prune(nodes, 11)
    assert [path for path, _ in kept] == [path for path, _ in pruned]


def test_eagle_s_static_tree_follows_ranks(rng):
    scores = scores_of(rng)
    nodes = eagle.static(scores)
    assert len(nodes) == 25 and closed(nodes)
    paths = [path for path, _ in nodes]
    first = np.argsort(-scores(()))
    assert paths[:4] == [(token,) for token in first[:4].tolist()]
    below = np.argsort(-scores((int(first[1]),)))
    assert paths[7:9] == [(int(first[1]), token) for token in below[:2].tolist()]
