"""Plans against what is really allocated, counted by hand, and compiled."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import AxisType

import jspec
from jspec import models
from jspec._xla import native
from jspec.costs import devices
from jspec.models import sharding
from jspec.planning import compile_plan, compiled, layout, plan, work
from jspec.planning.compiled import Compiled, extended
from jspec.planning.launches import Launches, Rounds
from jspec.planning.nearest import nearest
from jspec.planning.products import products
from jspec.planning.topology import mesh_here

V5E = devices.find("v5e")
FIXTURES = Path(__file__).parents[1] / "models/fixtures"
FAMILIES = (
    *("qwen3_next", "qwen3_5", "granite4", "deepseek_v2", "deepseek_v3"),
    *("gpt_oss", "gemma4", "smollm3"),
)
MODEL = tiny.model(context=8192)
SHAPES = jax.eval_shape(lambda: tiny.params(MODEL))
RECYCLING = jspec.TokenRecycling(tiny.VOCAB, template=jspec.Template(((0,), (1,), (0, 0))), k=2)


def bytes_of(tree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def on_one_device(tree) -> int:
    """Bytes of arrays on the first device."""
    first = jax.devices()[0]
    return sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
        if shard.device == first
    )


@pytest.fixture
def mesh():
    if jax.device_count() < 8:
        pytest.skip("needs XLA_FLAGS=--xla_force_host_platform_device_count=8")
    return jax.make_mesh((2, 4), ("data", "model"), (AxisType.Auto, AxisType.Auto))


def tiny_plan(drafter=RECYCLING, drafter_params=None, **asked):
    target = models.Loaded(MODEL, SHAPES, None, (), None)
    built = jspec.methods.Built(MODEL, drafter, drafter_params)
    return plan(
        target, built, **(dict(device=V5E, rows=2, capacity=128, max_new_tokens=20) | asked)
    )


def test_bytes_are_those_that_are_allocated():
    target = models.load("jspec-800k", with_tokenizer=False)
    shaped = models.shapes("jspec-800k")
    assert shaped.model == target.model and shaped.eos == target.eos
    drafter = jspec.Suffix(num_speculative_tokens=3, capacity=256)
    built = jspec.methods.Built(shaped.model, drafter, None)
    found = plan(shaped, built, device="cpu", rows=2, capacity=128, max_new_tokens=100).held
    state = jspec.prefill(
        target.model, target.params, np.ones((2, 28), int), drafter=drafter, max_new_tokens=100
    )
    assert found.weights == bytes_of(target.params)
    assert found.cache == bytes_of(state.memory)
    assert found.drafter_state == bytes_of(state.drafter_state)
    rest = bytes_of(replace(state, memory=None, drafter_state=None))
    assert found.rest == rest + 2 * 129 * 4  # and the prompt


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_families_hold_what_is_planned(name):
    """Latents, states of recurrent layers, and layers without keys of their own among them."""
    target = models.load(FIXTURES / name, with_tokenizer=False)
    shaped = models.shapes(FIXTURES / name)
    drafter = jspec.TokenRecycling(shaped.model.vocab_size, RECYCLING.template, k=2)
    built = jspec.methods.Built(shaped.model, drafter, None)
    found = plan(shaped, built, device=V5E, rows=2, capacity=48, max_new_tokens=20)
    assert found.held.weights == bytes_of(target.params)
    assert found.held.cache == bytes_of(target.model.init_memory(2, 48))
    plain, drafted = found.rounds
    assert (plain.width, drafted.width) == (0, 3)
    assert 1 < drafted.work.flops / plain.work.flops <= 4.5 and plain.relative == 1


def test_bytes_of_a_device_are_those_of_really_sharded_arrays(mesh):
    # 23 tokens divide over nothing, 2 heads not over 4 devices.
    for model in (MODEL, tiny.model(vocab_size=24, num_kv_heads=4)):
        params, cache = tiny.params(model), model.init_memory(4, 16)
        shapes = jax.eval_shape(lambda params=params: params)
        planned = layout.mesh_of(data=2, model=4)
        found = layout.per_device(layout.spread(shapes, planned))
        assert found == on_one_device(jax.device_put(params, sharding.params(params, mesh)))
        found = layout.per_device(layout.model_memory(model, 4, 16, planned))
        assert found == on_one_device(jax.device_put(cache, sharding.memory(cache, mesh)))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_shapes_are_those_of_what_is_loaded_scanned_and_in_8_bits(dtype):
    asked = dict(dtype=dtype, scan_layers=True)
    target = models.load("jspec-800k", with_tokenizer=False, **asked)
    shaped = models.shapes("jspec-800k", **asked)
    assert shaped.model == target.model
    same = jax.tree.map(
        lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), shaped.params, target.params
    )
    assert jax.tree.all(same)
    # A round does the same, and reads each weight once in the form that it has.
    plain = models.shapes("jspec-800k", dtype="float32")
    scores = [
        work.score(one.model, one.params, 1, 2, 128, layout.mesh_of()) for one in (shaped, plain)
    ]
    sizes = [
        sum(x.size * x.dtype.itemsize for x in leaves)
        for leaves in (jax.tree.leaves(shaped.params), jax.tree.leaves(plain.params))
    ]
    assert scores[0].flops == scores[1].flops
    # But norms and factors are no part of a product.
    read, held = scores[1].read - scores[0].read, sizes[1] - sizes[0]
    assert abs(read - held) < 0.02 * sizes[1]


def by_hand(config, rows, nodes, capacity):
    """Flops of a forward: two for each weight and token, and for each key and value seen."""
    width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    layer = width * (heads + 2 * kv_heads) * dim + heads * dim * width + 3 * width * inner
    weights = config.num_layers * layer + config.vocab_size * width
    seen = 4 * heads * dim * (nodes + capacity) * config.num_layers
    # The turn of a position goes through a product with the identity, see `rope.turns`.
    turned = 2 * dim * dim * config.num_layers
    return rows * nodes * (2 * weights + seen + turned)


@pytest.mark.parametrize(("rows", "nodes", "capacity"), [(1, 1, 128), (2, 5, 128), (2, 5, 512)])
def test_flops_and_bytes_are_those_of_the_hand(rows, nodes, capacity):
    found = work.score(MODEL, SHAPES, rows, nodes, capacity, layout.mesh_of())
    config = MODEL.config
    assert found.flops == by_hand(config, rows, nodes, capacity)
    matrices = [leaf for leaf in jax.tree.leaves(SHAPES) if len(leaf.shape) == 2]
    read = sum(leaf.size for leaf in matrices) - config.vocab_size * config.hidden_size
    looked_up = rows * nodes * config.hidden_size
    keys = 2 * config.num_layers * rows * config.num_kv_heads * capacity * config.head_dim
    assert found.read == 4 * (read + looked_up + keys)
    assert (found.tokens, found.sent) == (rows * nodes, 0)


def test_work_is_shared_as_the_weights_are():
    model = tiny.model(vocab_size=24, num_kv_heads=4)
    shapes = jax.eval_shape(lambda: tiny.params(model))
    alone = work.score(model, shapes, 4, 3, 128, layout.mesh_of())
    mesh = layout.mesh_of(data=2, model=4)
    split = work.score(model, layout.spread(shapes, mesh), 4, 3, 128, mesh)
    assert split.flops == pytest.approx(alone.flops / 8)
    # Fewer key-value heads than devices: each reads all of them, for its own queries.
    few = tiny.model(vocab_size=24)
    weights = jax.eval_shape(lambda: tiny.params(few))
    alone = work.score(few, weights, 4, 3, 128, layout.mesh_of())
    apart = work.score(few, layout.spread(weights, mesh), 4, 3, 128, mesh)
    assert apart.flops == pytest.approx(alone.flops / 8)
    assert apart.read > alone.read / 8 + 2 * 2 * 2 * 2 * 128 * 4 * 4 * (1 - 1 / 4)
    # What has to be summed: the looked-up states, and two sums a layer; 6 tokens of 16 numbers.
    sums = 1 + 2 * model.num_layers
    assert split.sent == pytest.approx(2 * 3 / 4 * sums * 6 * 16 * 4)


def test_products_in_loops_and_branches_count_as_often_as_they_run():
    weights, x = jnp.ones((3, 4, 4)), jnp.ones((2, 4))

    def scanned(weights, x):
        return jax.lax.scan(lambda x, one: (x @ one, None), x, weights)[0]

    def twice(weights, x):
        x = jax.lax.fori_loop(0, 2, lambda _, x: x @ weights[0], x)
        return jax.lax.cond(x.sum() > 0, lambda x: x @ weights[0] @ weights[1], lambda x: x, x)

    once = 2 * 2 * 4 * 4
    for function, runs in ((scanned, 3), (twice, 4)):
        found = products(function, weights, x)
        assert sum(each.flops for each in found) == runs * once
        assert sum(each.read for each in found if each.flops) == runs * 64
    dropped = products(lambda weights, x: (x @ weights[0], x)[1], weights, x)
    assert not dropped, "what no result needs is not run"


def test_drafters_weights_count_once_where_they_are_shared():
    draft = tiny.draft()
    shapes = jax.eval_shape(lambda: tiny.params(draft))
    planned = tiny_plan(jspec.SpeculativeDecoding(draft, 3), shapes)
    assert planned.held.drafter_weights == sum(4 * leaf.size for leaf in jax.tree.leaves(shapes))
    assert planned.draft.flops >= 3 * by_hand(draft.config, 2, 1, 0)
    assert [each.width for each in planned.rounds] == [0, 3] and planned.widths == (3,)
    again = tiny_plan(jspec.SpeculativeDecoding(MODEL, 3), SHAPES)
    assert again.held.drafter_weights == 0


def test_a_draft_model_is_whole_and_what_a_head_borrows_is_split_as_the_target():
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    layer = {"qkv": {"weight": shape}}
    draft = {"params": {"embed": shape, "layers_0": layer}}
    head = {"params": {"info": {"up": shape}, "layer": layer}, "target": {"embed": shape}}
    placed = layout.spread_drafter((draft, head), layout.mesh_of(model=2))
    assert [layout.parts(leaf) for leaf in jax.tree.leaves(placed)] == [1, 1, 2, 1, 2]
    # A target by itself is split: the network of a plan is the one that loading would give.
    assert layout.parts(layout.spread(draft, layout.mesh_of(model=2))["params"]["embed"]) == 2
    assert tiny_plan(model=2).setting.model.tp_size == 2


def test_the_curve_rises_with_the_width_and_goes_into_a_drafter():
    target = models.shapes("llama-8b", dtype="bfloat16", num_layers=4)
    drafter = jspec.PromptLookup(num_speculative_tokens=63)
    built = jspec.methods.Built(target.model, drafter, None)
    planned = plan(target, built, device="v5e", rows=1, capacity=1024)
    ratio = planned.rounds[-1].relative
    assert 1 < ratio < 1.1
    curve = np.asarray(planned.costs.at([1, 64]))
    np.testing.assert_allclose(curve[1] / curve[0], ratio, rtol=1e-4)
    # 4 layers of 218 million weights, the head, and 4 * 1024 tokens of 4 kB.
    reading = 2 * (4 * 218.1e6 + 128256 * 4096) + 4 * 1024 * 4096
    assert planned.rounds[0].seconds == pytest.approx(reading / V5E.bandwidth, rel=1e-3)
    # 512 rows and 64 nodes are 32,768 tokens: arithmetic decides, and time goes with flops.
    many = plan(target, built, device="v5e", rows=512, capacity=256).rounds[-1]
    assert many.seconds == pytest.approx(many.work.flops / V5E.flops, rel=1e-2)


def test_what_does_not_fit_is_said_with_the_nearest_that_does():
    # A token's keys and values take 256 bytes, a row of 4,096 tokens a megabyte.
    asked = dict(device=replace(V5E, memory=4_000_000), rows=8, capacity=4096)
    planned = tiny_plan(jspec.Autoregressive(), **asked)
    assert not planned.fits and planned.held.cache == 8 * (4096 * 128 + 4)
    fewer, shorter, wider = nearest(planned)
    assert (fewer.rows, shorter.capacity, wider.num_devices) == (5, 2560, 2)
    for changed, fits in (
        (dict(rows=fewer.rows), True),
        (dict(rows=fewer.rows + 2), False),
        (dict(capacity=shorter.capacity), True),
        (dict(capacity=shorter.capacity + 512), False),
        (dict(data=wider.data, model=wider.model_parallel), True),
    ):
        assert tiny_plan(jspec.Autoregressive(), **(asked | changed)).fits == fits
    nowhere = tiny_plan(jspec.Autoregressive(), device=replace(V5E, memory=500))
    assert nearest(nowhere) == []


def test_what_a_bucket_of_decode_holds_is_noted():
    planned = tiny_plan(jspec.Autoregressive(), capacity=200, max_new_tokens=20)
    (note,) = planned.notes
    assert "jspec.decode rounds them up to 256" in note
    wider = tiny_plan(jspec.Autoregressive(), capacity=256, max_new_tokens=20)
    assert not wider.notes and f"a cache of {wider.held.cache / 1e9:.3g} GB" in note


@pytest.mark.slow
def test_what_a_gpu_copies_of_scanned_layers_is_noted():
    def notes(device, **more):
        target = models.shapes("llama-8b", "bfloat16", **more)
        built = jspec.methods.Built(target.model, jspec.Autoregressive(), None)
        return plan(target, built, device=device).notes

    (note,) = notes("H100", scan_layers=True)
    # 32 layers of 218 million weights, written and read at 3.35 TB/s.
    assert "in every round, 14 GB or 8.3 ms more" in note
    assert not notes("H100") and not notes("v5e", scan_layers=True)


def test_a_plan_of_many_rows_needs_no_memory_for_their_prompts():
    most = tiny_plan(jspec.Autoregressive(), rows=2**24)
    assert most.held.cache > 2**24 * 128


def test_what_does_not_divide_is_noted():
    planned = tiny_plan(model=4)
    heads, vocabulary = planned.notes
    assert (
        "key-value heads (2) do not divide over model=4" in heads
        and "over model=2 they would" in heads
    )
    assert "a vocabulary of 23 does not divide" in vocabulary and "model=1 it would" in vocabulary
    with pytest.raises(jspec.InputError, match=r"2 rows do not divide over data=4 .* such as 4"):
        tiny_plan(data=4)


@pytest.mark.slow
def test_compiled_figures_are_those_of_xla():
    planned = tiny_plan(device="cpu")
    with native.disabled():  # XLA does not see what its kernels compute
        found = compile_plan(planned, mesh_here(1, 1))
    prefill, rounds = found.compiled
    assert found.temporaries == max(prefill.temporaries, rounds.temporaries)
    # The scores of a round, 2 rows of 4 tokens, are among them.
    assert rounds.temporaries > 4 * 2 * 4 * 23
    assert found.temporaries_are == "compiled"
    # XLA counts more than products, and not much more.
    (wide,) = [each for each in planned.rounds if each.width == 3]
    assert 0.9 * wide.work.flops < rounds.flops < 3 * wide.work.flops
    few, more = (replace(rounds, layers=(count,), flops=10.0 + count) for count in (1, 2))
    assert extended(few, more, 80).flops == 90.0


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("FAILED_PRECONDITION: Slice not assigned", "take another method, or plan without"),
        ("RESOURCE_EXHAUSTED: Ran out", "there is no place for it; take fewer rows or more"),
    ],
)
def test_what_a_compiler_refuses_is_said_with_the_program(monkeypatch, reason, said):
    def refuse(*given):
        raise jax.errors.JaxRuntimeError(reason)

    monkeypatch.setattr(compiled, "rounds", refuse)
    begins = rf"the program of rounds does not compile for CPU \({reason}\)"
    with pytest.raises(jspec.InputError, match=rf"{begins}.*{said}"):
        compile_plan(tiny_plan(device="cpu"), mesh_here(1, 1))


@pytest.mark.slow
def test_launches_count_in_the_rounds_of_a_gpu():
    target = models.shapes("llama-8b", "bfloat16", num_layers=4)
    found = plan(target, device="H100", capacity=1024)
    assert found.launching.source == "estimated"
    times = [each.work.seconds(found.setting.device) for each in found.rounds]
    launched = [each.seconds - time for each, time in zip(found.rounds, times, strict=True)]
    drafts = found.launching.drafted
    np.testing.assert_allclose(launched, [found.launching.plain, *drafts[1:]])
    # Of a round that backs off more than in plain decoding, and less than of one that drafts.
    curve = found.costs
    rest, narrow = float(curve.without_draft()), float(curve.at([1])[0])
    assert times[0] + found.launching.plain < rest < narrow
    np.testing.assert_allclose(narrow - rest, drafts[0] - found.launching.rest, rtol=1e-3)
    assert plan(target, device="v5e", capacity=1024).launching.source == ""


def test_counts_of_two_depths_are_on_their_line():
    one, two = (Launches(kernels=50 + 23 * layers, waits=3) for layers in (2, 4))
    counted = [Rounds(each, (each,), None) for each in (one, two)]
    given = [
        Compiled("rounds", 0, 0.0, 0, 0.0, (layers,), each)
        for layers, each in zip((2, 4), counted, strict=True)
    ]
    assert extended(*given, 32).launches == Launches(kernels=50 + 23 * 32, waits=3)
