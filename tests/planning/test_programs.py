"""Programs compiled ahead of time, against what is really allocated."""

import jax
import jax.numpy as jnp
import pytest
import tiny
from jax.sharding import AxisType

import jspec
from jspec._xla import native
from jspec.models import sharding
from jspec.planning import Programs, layout, mesh_here

MODEL = tiny.model(context=8192)
SHAPES = jax.eval_shape(lambda: tiny.params(MODEL))
RECYCLING = jspec.TokenRecycling(tiny.VOCAB, template=jspec.Template(((0,), (1,), (0, 0))), k=2)


def asked(drafter=RECYCLING, mesh=None, **more):
    sizes = dict(rows=2, capacity=128, max_new_tokens=20) | more
    return Programs(MODEL, SHAPES, drafter, None, mesh or mesh_here(), **sizes)


def mesh_of(data, model):
    if jax.device_count() < 8:
        pytest.skip("needs XLA_FLAGS=--xla_force_host_platform_device_count=8")
    return jax.make_mesh((data, model), ("data", "model"), (AxisType.Auto, AxisType.Auto))


def bytes_of(tree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_figures_of_rounds_are_those_of_xla():
    with native.disable():  # XLA does not see what its kernels compute
        found = asked().rounds()
    state = jspec.prefill(
        MODEL, tiny.params(MODEL), jnp.ones((2, 108), int), drafter=RECYCLING, max_new_tokens=20,
        stopping=jspec.Stopping(eos=0),
    )  # fmt: skip
    given = bytes_of(tiny.params(MODEL)) + bytes_of(state)
    # What a program does not read is not given to it.
    assert 0.99 * given <= found.arguments <= given + 64
    # The scores of a round, 2 rows of 4 tokens, are among them.
    assert found.temporaries > 4 * 2 * 4 * tiny.VOCAB
    assert found.held == found.arguments + found.temporaries == found.as_dict()["held"]
    # XLA counts more than products, and not much more.
    wanted = by_hand(MODEL.config, 2, 4, 128)
    assert 0.9 * wanted < found.flops < 3 * wanted


def by_hand(config, rows, nodes, capacity):
    """Counts two operations for each weight and token, and for each key and value seen."""
    width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    layer = width * (heads + 2 * kv_heads) * dim + heads * dim * width + 3 * width * inner
    weights = config.num_layers * layer + config.vocab_size * width
    seen = 4 * heads * dim * (nodes + capacity) * config.num_layers
    return rows * nodes * (2 * weights + seen)


def test_shardings_are_those_of_loading():
    # 23 tokens divide over nothing, 2 heads not over 4 devices.
    mesh = mesh_of(2, 4)
    for model in (MODEL, tiny.model(vocab_size=24, num_kv_heads=4)):
        shapes = jax.eval_shape(lambda model=model: tiny.params(model))
        found = jax.tree.map(lambda leaf: leaf.sharding, layout.spread(shapes, mesh))
        assert found == sharding.params(shapes, mesh)
        cache = layout.model_memory(model, 4, 16, mesh)
        wanted = sharding.memory(jax.eval_shape(lambda model=model: model.init_memory(4, 16)), mesh)
        assert jax.tree.map(lambda leaf: leaf.sharding, cache) == wanted
    # The network is the one that loading onto the mesh would give.
    assert asked(mesh=mesh).model.tp_size == 4


def test_a_draft_model_is_whole_and_what_a_head_borrows_is_split_as_the_target():
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    layer = {"qkv": {"weight": shape}}
    draft = {"params": {"embed": shape, "layers_0": layer}}
    head = {"params": {"info": {"up": shape}, "layer": layer}, "target": {"embed": shape}}
    mesh = mesh_of(4, 2)
    placed = layout.spread_drafter((draft, head), mesh)
    assert [parts(leaf) for leaf in jax.tree.leaves(placed)] == [1, 1, 2, 1, 2]
    # A target by itself is split.
    assert parts(layout.spread(draft, mesh)["params"]["embed"]) == 2


def parts(leaf) -> int:
    return leaf.size // jnp.zeros(leaf.sharding.shard_shape(leaf.shape)).size


def test_many_rows_need_no_memory_for_their_prompts():
    assert asked(jspec.Autoregressive(), rows=2**24).state.root.shape == (2**24,)


def test_uncompilable_programs_are_refused_in_one_sentence(monkeypatch):
    for given, said in (
        (dict(rows=0), "rows is 0"),
        (dict(capacity=9000), "capacity is 9000"),
        (dict(max_new_tokens=128), "max_new_tokens is 128"),
        (dict(mesh=mesh_of(4, 2)), "2 rows do not divide over data=4 .* such as 4"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            asked(**given)
    with pytest.raises(jspec.InputError, match="take fewer, or name a --topology"):
        mesh_here(1, 4096)
    for reason, said in (
        ("FAILED_PRECONDITION: Slice not assigned", "take another method"),
        ("RESOURCE_EXHAUSTED: Ran out", "it does not fit: take fewer rows"),
    ):

        def refuse(self, function, lowered, reason=reason):
            raise jax.errors.JaxRuntimeError(reason)

        monkeypatch.setattr(Programs, "_compiled", refuse)
        begins = rf"the program rounds does not compile for cpu \({reason}\)"
        with pytest.raises(jspec.InputError, match=rf"{begins}; {said}"):
            asked(jspec.Autoregressive()).rounds()
