"""The oracles of trees from draft heads, held to what the papers say of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.models.heads.lyanna import LyannaConfig, LyannaHead, collapse, table_bytes
from oracle import lyanna

V = 12


@pytest.fixture(params=range(4))
def rng(request):
    return np.random.default_rng(request.param)


def test_token_info_is_that_of_the_head_factored_and_collapsed():
    """`LyannaHead.inform` from W1 W2, from the table and from its factors, some or all hot."""
    for hot in [(), (1, 2, 5, 8, 11)]:
        head = LyannaHead(LyannaConfig(V, 8, 12, 1, 2, 1, 4, 32, rank=3, hot_tokens=len(hot)))
        one, inform = jnp.zeros((1, 1), jnp.int32), jax.jit(head.inform)
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
            found = inform(given, logits, jnp.arange(V)[None])[0]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        # In fewer bits each entry is off by at most half a step: of its row, or of its own size.
        largest = np.abs(np.array(expected) - np.asarray(logits[0])).max(-1, keepdims=True)
        for dtype, error in (("int8", largest / 127 / 2), ("float16", largest * 2.0**-11)):
            table = collapse(head, variables, dtype)
            assert table["table"]["info"]["rows"].dtype == dtype
            gap = np.abs(inform(table, logits, jnp.arange(V)[None])[0] - np.array(expected))
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
