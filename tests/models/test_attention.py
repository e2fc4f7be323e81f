"""Attention over nodes whose activations are not numbers: they harm those below them alone."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec
from jspec import memory
from jspec._xla import native
from jspec.models import attention
from jspec.models.attention import Cached, Past, attend
from jspec.testing.model_subject import above

# The root, two children, a child of each, and a grandchild: 0 -> 1 -> 3 -> 5, 0 -> 2 -> 4.
PARENTS = np.array([-1, 0, 0, 1, 2, 3])


def run_behind(q, k, v, mask, slots, lengths, positions, **options):
    """Attention whose new tokens are written behind the live slots, where NaN must not be left."""
    room = (0, 0), (0, 0), (0, q.shape[1]), (0, 0)
    keys, values = (jnp.pad(x, room, constant_values=7) for x in slots)
    cache = memory.KVCache((keys,), (values,), lengths, room=q.shape[1])
    past = attention.past(cache.opened(mask, positions), None, 0)
    k, v = past.put(k, v)
    return attend(q, k, v, mask, past, positions, **options), v


@pytest.mark.parametrize("earlier", [0, 3, "behind"])
def test_a_nan_node_affects_only_its_descendants(earlier):
    behind = earlier == "behind"
    earlier = 0 if behind else earlier
    draw = np.random.default_rng(0)
    size, cached = len(PARENTS), 4
    q = draw.normal(size=(1, size - earlier, 4, 8)).astype(np.float32)
    k, v = draw.normal(size=(2, 1, 2, size, 8)).astype(np.float32)
    past = draw.normal(size=(2, 1, 2, cached, 8)).astype(np.float32)
    mask = above(PARENTS)[None, earlier:]

    attended = jax.jit(run_behind if behind else attend)

    def run(k, v):
        if behind:
            lengths = np.array([3])
            found, written = attended(q, k, v, mask, past, lengths, lengths + mask.sum(-1) - 1)
            assert np.isfinite(written).all()
            return np.asarray(found)[0]
        nodes = (k[:, :, :earlier], v[:, :, :earlier]) if earlier else None
        held = Past(Cached(*past, np.array([3])), nodes)
        return np.asarray(attended(q, k[:, :, earlier:], v[:, :, earlier:], mask, held))[0]

    clean = run(k, v)
    below = above(PARENTS)[earlier:, 1]
    for part, value in itertools.product(("keys", "values"), (np.nan, np.inf, -np.inf)):
        bad = {"keys": k.copy(), "values": v.copy()}
        bad[part][0, :, 1] = value
        found = run(bad["keys"], bad["values"])
        np.testing.assert_array_equal(found[~below], clean[~below])
        if part == "values" or np.isnan(value):
            assert np.isnan(found[below]).all()


SINKS = np.array([-1.0, 0.0, 1.5, 30.0])


@pytest.mark.parametrize(("earlier", "window", "sinks"), [
    pytest.param(earlier, window, SINKS if sinks else None,
                 marks=[] if (number + bool(earlier) + sinks) % 2 else [pytest.mark.slow])
    for earlier in (0, 3, "behind")
    for number, window in enumerate((None, 1, 2, 4)) for sinks in (False, True)
])  # fmt: skip
def test_scale_cap_window_and_sinks_are_those_of_one_long_softmax(earlier, window, sinks):
    """Against float64 NumPy over slots and nodes in a row, each with its position."""
    behind = earlier == "behind"
    earlier = 0 if behind else earlier
    draw = np.random.default_rng(0)
    size, lengths = len(PARENTS), np.array([3, 1])
    q = draw.normal(size=(2, size, 4, 8)).astype(np.float32)
    k, v = draw.normal(size=(2, 2, 2, size, 8)).astype(np.float32)
    keys, values = draw.normal(size=(2, 2, 2, 5, 8)).astype(np.float32)
    tree = above(PARENTS)
    depths = tree.sum(-1) - 1
    mask = np.broadcast_to(tree, (2, size, size))[:, earlier:]
    positions = lengths[:, None] + depths
    nodes = (k[:, :, :earlier], v[:, :, :earlier]) if earlier else None
    new = q[:, earlier:], k[:, :, earlier:], v[:, :, earlier:], mask
    options: dict = dict(scale=0.7, soft_cap=1.5, window=window)
    if sinks is not None:
        options["sinks"] = jnp.asarray(sinks, jnp.float32)
    if behind:
        run = jax.jit(partial(run_behind, **options))
        found, _ = run(*new, (keys, values), lengths, positions)
    else:
        past = Past(Cached(keys, values, lengths), nodes)
        found = jax.jit(partial(attend, **options))(*new, past, positions[:, earlier:])
    places = np.concatenate([np.tile(np.arange(5), (2, 1)), positions], axis=1)
    for row, node, head in np.ndindex(2, size - earlier, 4):
        live = np.arange(5) < lengths[row]
        seen = np.concatenate([live, tree[earlier + node]])
        if window is not None:
            seen &= places[row] > positions[row, earlier + node] - window
        held = np.concatenate([keys[row, head // 2], k[row, head // 2]]).astype(np.float64)
        score = 1.5 * np.tanh(held @ q[row, earlier + node, head] * 0.7 / 1.5)
        weight = np.where(seen, np.exp(score), 0)
        held = np.concatenate([values[row, head // 2], v[row, head // 2]])
        wanted = weight @ held / (weight.sum() + (0 if sinks is None else np.exp(sinks[head])))
        np.testing.assert_allclose(found[row, node, 8 * head : 8 * head + 8], wanted, atol=1e-5)


@pytest.mark.parametrize("window", [4, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("many", [False, True, "as on a GPU"])
def test_blocks_of_slots_are_all_slots(monkeypatch, many, window):
    """Of any size, dividing the slots or not, for short rows and for full ones."""
    draw = np.random.default_rng(0)
    size, slots = 6, 11
    q = draw.normal(size=(2, size, 4, 8)).astype(np.float32)
    k, v = draw.normal(size=(2, 2, 2, size, 8)).astype(np.float32)
    keys, values = draw.normal(size=(2, 2, 2, slots, 8)).astype(np.float32)
    mask = np.broadcast_to(np.tril(np.ones((size, size), bool)), (2, size, size))
    monkeypatch.setattr(attention, "_MANY_QUERIES", 1 if many else 99)
    if many == "as on a GPU":
        monkeypatch.setattr(attention, "GPU_SCORES", 0)
        monkeypatch.setattr(
            jax.lax,
            "platform_dependent",
            lambda *given, default, cuda=None: (cuda or default)(*given),
        )

    def run(lengths, block, other=0.0):
        monkeypatch.setattr(attention, "_MANY_SLOTS" if many else "_FEW_SLOTS", block)
        dead = (np.arange(slots) >= lengths[:, None])[:, None, :, None]
        held = [np.where(dead, x + other, x) for x in (keys, values)]
        positions = lengths[:, None] + np.arange(size)
        return attend(q, k, v, mask, Past(Cached(*held, lengths), None), positions, window=window)

    for lengths in ([2, 1], [3, 0], [5, 2], [11, 7]):
        lengths = np.array(lengths)
        whole = run(lengths, slots)
        for block in (2, 3, 4, 10):
            found = run(lengths, block, other=9.0)
            np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-6)
    # A neighbour's further blocks change no bit of a short row.
    short, long = (run(np.array([first, 2]), 2) for first in (2, 5))
    np.testing.assert_array_equal(short[1], long[1])


@pytest.mark.parametrize(
    ("platform", "nodes", "slots", "loops"),
    [("cuda", 81, 2048, 0), ("cuda", 512, 8192, 0), ("cuda", 512, 16_384, 1), ("cpu", 81, 2048, 1)],
)
def test_a_gpu_has_no_loop_over_few_blocks(platform, nodes, slots, loops):
    """Its host decides for each block whether the loop goes on."""
    heads, mates, dim = 8, 4, 128

    def run(q, k, mask, keys, lengths):
        return attend(q, k, k, mask, Past(Cached(keys, keys, lengths), None))

    shapes = [
        ((1, nodes, heads * mates, dim), jnp.bfloat16),
        ((1, heads, nodes, dim), jnp.bfloat16),
    ]
    shapes += [((1, nodes, nodes), bool), ((1, heads, slots, dim), jnp.bfloat16)]
    shapes += [((1,), jnp.int32)]
    with native.disable():  # a CPU's kernel has no loop of XLA's
        traced = jax.jit(run).trace(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))
        lowered = traced.lower(lowering_platforms=(platform,)).as_text()
    assert lowered.count("stablehlo.while") == loops


def test_nan_values_do_not_enter_gradients_of_others():
    draw = np.random.default_rng(0)
    q = draw.normal(size=(1, 3, 2, 4)).astype(np.float32)
    k, v = draw.normal(size=(2, 1, 2, 3, 4)).astype(np.float32)
    v[:, :, 2] = np.nan
    mask = np.tril(np.ones((1, 3, 3), bool))

    def loss(q):
        return attend(q, k, v, mask, Past(None, None))[:, :2].sum()

    assert np.isfinite(jax.grad(loss)(q)[:, :2]).all()


def test_a_nan_in_a_committed_token_ends_its_row_alone():
    model = tiny.model()
    params = tiny.params(model)
    held = params["params"]
    spoilt = {"params": {**held, "embed": held["embed"].at[7].set(jnp.nan)}}
    result = jspec.decode(model, spoilt, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=4)
    plain = jspec.decode(model, params, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=4)
    assert result.status[0] == jspec.Status.NAN
    np.testing.assert_array_equal(result.tokens[1:], plain.tokens[1:])


def test_a_padded_prompt_is_not_harmed_by_what_pads_it():
    """The prompt's padding is token 0, which the text may lack."""
    model = tiny.model()
    params = tiny.params(model)
    held = params["params"]
    prompts, lengths = np.array([[5, 3, 9, 1], [4, 4, 0, 0]]), np.array([4, 2])
    options = dict(max_new_tokens=3)
    plain = jspec.decode(model, params, prompts, lengths, **options)
    assert not (np.asarray(plain.tokens) == 0).any()
    spoilt = {"params": {**held, "embed": held["embed"].at[0].set(jnp.nan)}}
    found = jspec.decode(model, spoilt, prompts, lengths, **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
