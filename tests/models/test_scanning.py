"""Scanned layers are the layers: the same numbers, one program, and no second cache."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny

import jspec
from jspec._xla import native
from jspec._xla.native.product import MOST_ROWS
from jspec.models import Layer, Rope, checkpoint
from jspec.models.fingerprint import fingerprint

NEAR, FAR = Layer(Rope(), window=4), Layer(Rope())
DEEP = tiny.model(num_layers=5, layers=(NEAR, FAR, NEAR, FAR, NEAR)).clone(taps=(1, 4))
"""Two periods that are scanned, and a layer that is not."""


def test_scanned_layers_give_the_numbers_of_the_others():
    """Without a cache and as a tree behind one, and the states that enter a layer."""
    params = tiny.params(DEEP)

    @jax.jit(static_argnums=0)
    def run(model, params):
        prompt = model.apply(params, *tiny.causal(tiny.PROMPTS), None)
        every = jnp.broadcast_to(jnp.arange(8), tiny.PROMPTS.shape)
        kept = prompt.tentative
        cache = model.commit(model.init_memory(3, 300), kept, every, jnp.asarray(tiny.LENGTHS))
        places = jnp.asarray(tiny.LENGTHS)[:, None] + jnp.array([0, 1, 1])
        seen = jnp.broadcast_to(jnp.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool), (3, 3, 3))
        held = jax.tree.map(lambda x: x[:, :, :1], kept)
        whole = model.apply(params, tiny.PROMPTS[:, :3], places, seen, cache)
        later = model.apply(
            params, tiny.PROMPTS[:, 3:4], places[:, :1], seen[:, :1, :2], cache, held
        )
        return [(output.logits, output.hidden) for output in (prompt, whole, later)]

    scanned = DEEP.clone(scan_layers=True)
    assert [len(layers) for group in scanned.groups for layers in group] == [2, 2, 1]
    found = run(scanned, checkpoint.relaid(scanned, params))
    wanted = run(DEEP, params)
    assert tiny.equal(found, wanted)
    # Layers in another order are another model: the comparison can fail.
    layers = params["params"]
    turned = {"params": layers | {"layers_0": layers["layers_2"], "layers_2": layers["layers_0"]}}
    assert not tiny.equal(run(scanned, checkpoint.relaid(scanned, turned)), wanted)


FAMILIES = (
    *("gpt2", "opt_norms_behind_projected", "pythia", "mixtral", "llama31", "qwen3"),
    *("gpt_oss", "qwen3_5", "gemma4_unified", "qwen3_5_moe"),
)


@pytest.mark.parametrize("name", quick.only(FAMILIES, "gpt2"))
def test_checkpoints_load_into_scanned_layers(name, recorded, fixtures):
    plain = recorded(name)
    loaded = jspec.models.load(fixtures / name, with_tokenizer=False, scan_layers=True)
    assert jax.tree.map(jnp.shape, loaded.params) == jax.tree.map(
        jnp.shape, checkpoint.shapes(loaded.model)
    )
    assert tiny.equal(checkpoint.relaid(plain.model, loaded.params), plain.params)
    logits = tiny.forward(loaded.model, loaded.params, plain.tokens).logits
    np.testing.assert_allclose(logits, plain.logits, atol=1e-4, rtol=0)


def test_one_checkpoint_is_restored_either_way(fixtures, tmp_path):
    plain = jspec.models.load(fixtures / "llama2", with_tokenizer=False)
    scanned = jspec.models.load(fixtures / "llama2", with_tokenizer=False, scan_layers=True)
    assert fingerprint(plain.params) == fingerprint(scanned.params)
    for saved, wanted in ((plain, scanned), (scanned, plain), (scanned, scanned)):
        folder = tmp_path / f"{saved.model.scan_layers}{wanted.model.scan_layers}"
        jspec.models.save(folder, saved.model, saved.params)
        asked = None if saved is wanted else wanted.model
        model, params = jspec.models.restore(folder, asked)
        assert model == wanted.model and tiny.equal(params, wanted.params)


def test_there_is_no_second_cache_and_no_copy_of_one_in_the_loop():
    shape = dict(hidden_size=32, head_dim=32, num_layers=8)
    model = tiny.model(**shape, context=2**17).clone(scan_layers=True)
    capacity = 40_000

    def generate(params, prompt):
        return jspec.decode(
            model, params, prompt, drafter=jspec.PromptLookup(3), max_new_tokens=capacity
        ).tokens

    program = jax.jit(generate).lower(checkpoint.shapes(model), np.ones((1, 4), np.int32)).compile()
    cache = sum(
        x.size * 4 for x in jax.tree.leaves(jax.eval_shape(lambda: model.init_memory(1, capacity)))
    )
    assert cache > 150e6
    assert program.memory_analysis().temp_size_in_bytes < 1.25 * cache
    assert not copied(program, capacity)


def test_a_scan_that_changes_the_cache_would_be_seen():
    """The negative control: each layer's part in, changed, and out again."""
    capacity = 40_000

    def generate(cache):
        def layer(x, part):
            return x + part.sum(), part.at[:, 3].set(x)

        def going(carry):
            return carry[0] < 100

        return jax.lax.while_loop(going, lambda carry: jax.lax.scan(layer, *carry), (0.0, cache))

    program = jax.jit(generate, donate_argnums=0).lower(np.zeros((4, 2, capacity, 32), np.float32))
    assert copied(program.compile(), capacity)


def copied(program, capacity: int) -> list[str]:
    """Copies inside loops of arrays as large as a layer's cache."""
    inner = program.as_text().split("\nENTRY ")[0]
    found = re.findall(r"= \w+\[([\d,]+)\]\S* (?:copy)\(", inner)
    return [
        shape for shape in found if np.prod([int(n) for n in shape.split(",")]) >= capacity * 64
    ]


@pytest.mark.skipif(native.instruction_set() is None, reason="needs the kernels of a CPU")
@pytest.mark.parametrize("param_dtype", [pytest.param("float32", marks=pytest.mark.slow), "int8"])
def test_the_kernels_copy_no_weights_out_of_a_stack(param_dtype):
    model = tiny.model(num_layers=3, hidden_size=32).clone(scan_layers=True)
    model = model.clone(param_dtype=param_dtype)
    shapes = checkpoint.shapes(model)["params"]["layers_0:3:1"]["gate_up"]["weight"]
    _, outputs, inputs = shapes.shape

    def copies(tokens: int) -> int:
        """Operations whose result is one layer's weights."""
        given = jnp.zeros((1, tokens), jnp.int32)
        mask = jnp.ones((1, tokens, tokens), bool)
        run = jax.jit(model.apply).lower(checkpoint.shapes(model), given, given, mask, None)
        kind = {"float32": "f32", "int8": "s8"}[param_dtype]
        text = run.compile().as_text()
        return len(re.findall(rf"= {kind}\[(?:1,)?{outputs},{inputs}\]", text))

    assert copies(8) == 0
    # More rows than the kernels take are multiplied by XLA, which copies; tiles take any number.
    in_tiles = param_dtype != "float32" and native.instruction_set() == "AMX"
    assert (copies(MOST_ROWS + 1) == 0) == in_tiles
