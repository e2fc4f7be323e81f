"""Memories of other kinds: latents against the paper's form, recurrent states, keys of others."""

import shutil
from dataclasses import replace

import adapters
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import refusals
import tiny
from safetensors.numpy import load_file, save_file

import jspec
import jspec.models
from jspec import memory
from jspec._xla import native
from jspec.models import LatentAttention, Layer, LlamaConfig, Rope, attention
from jspec.models.hybrid import HybridMemory
from jspec.models.llama import Block
from jspec.testing.model_subject import above

SIZES = LatentAttention(rank=6, query_rank=7, plain_dim=5, rotary_dim=4, value_dim=3)
HEADS, WIDTH, ROPE = 3, 8, Rope(theta=100.0, interleaved=True)
# Three committed tokens, and behind them a root, two children and a grandchild of the first.
COMMITTED, PARENTS = 3, np.array([-1, 0, 0, 1])


class Attention(Block):
    """The part of a block that is compared."""

    @nn.compact
    def __call__(self, read, positions, mask, past):
        return self.attend(read, positions, mask, past, self.layer)


def config(sizes: LatentAttention, **fields) -> LlamaConfig:
    shape = dict(
        vocab_size=16, hidden_size=WIDTH, intermediate_size=8, num_layers=1, num_heads=HEADS,
        num_kv_heads=1, head_dim=9, context=64, latent=sizes, layers=(Layer(ROPE),),
    )  # fmt: skip
    return LlamaConfig(**shape | fields)


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """Each pair of lanes as a complex number, turned."""
    lanes = x[..., ::2] + 1j * x[..., 1::2]
    angle = position * 100.0 ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1])
    lanes = lanes * np.exp(1j * angle)
    return np.stack([lanes.real, lanes.imag], -1).reshape(x.shape)


def normed(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean() + 1e-6) * scale


def by_paper(held: dict, sizes: LatentAttention, path: list[np.ndarray], window: int | None):
    """Attention's addition to the last of a path's states: appendix C, equations 37 to 47.

    Keys and values of all heads are made of the latents, as the paper writes it.
    """
    split = sizes.query_rank or 0
    keys, values = [], []
    for position, state in enumerate(path):
        made = held["latents"] @ state
        latent = normed(made[split : split + sizes.rank], held["kv_norm"])
        rotary = turned(made[split + sizes.rank :], position)
        up = (held["kv_up"] @ latent).reshape(HEADS, -1)
        plain, value = up[:, : sizes.plain_dim], up[:, sizes.plain_dim :]
        keys.append(np.concatenate([plain, np.tile(rotary, (HEADS, 1))], axis=1))
        values.append(value)
    made = held["latents"] @ path[-1]
    asked = normed(made[:split], held["q_norm"]) if split else path[-1]
    q = (held["q"] @ asked).reshape(HEADS, -1)
    q[:, sizes.plain_dim :] = turned(q[:, sizes.plain_dim :], len(path) - 1)
    seen = slice(-window if window else None, None)
    scores = np.einsum("hd,shd->hs", q, np.stack(keys[seen])) / np.sqrt(q.shape[1])
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    mixed = np.einsum("hs,shv->hv", weights, np.stack(values[seen]))
    return held["output"] @ mixed.reshape(-1)


def arrays(params: dict) -> dict:
    """Weights in float64, by the name of their product."""
    return {
        name: np.asarray(jax.tree.leaves(part)[0], np.float64)
        for name, part in params["params"].items()
    }


@pytest.mark.parametrize(("query_rank", "window"), [(7, None), (None, 3)])
def test_a_tree_of_latents_is_attended_as_the_paper_says(query_rank, window):
    sizes = LatentAttention(6, query_rank, 5, 4, 3)
    shape = config(sizes)
    block = Attention(shape, jnp.float32, jnp.float32, layer=Layer(ROPE, window))
    draw = np.random.default_rng(0)
    states = draw.normal(size=(1, COMMITTED + len(PARENTS), WIDTH)).astype(np.float32)
    seen = above(PARENTS)
    nothing = attention.Past(None, None)
    first = np.arange(COMMITTED)[None], np.tri(COMMITTED, dtype=bool)[None]
    read, rest = states[:, :COMMITTED], states[:, COMMITTED:]
    apply = jax.jit(block.apply)
    params = jax.eval_shape(block.init, jax.random.key(0), read, *first, nothing)
    params = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32) / 2, params)
    _, keys, values = apply(params, read, *first, nothing)
    assert keys.shape == (1, 1, COMMITTED, 4) and values.shape == (1, 1, COMMITTED, 6)

    model = jspec.models.Llama(shape)
    cache = memory.commit(
        model.init_memory(1, 8), jspec.TreeKV((keys,), (values,)), jnp.arange(COMMITTED)[None],
        jnp.array([COMMITTED]),
    )  # fmt: skip
    given = (COMMITTED + seen.sum(-1) - 1)[None], seen[None], attention.past(cache, None, 0)
    found, *_ = apply(params, rest, *given)
    for node in range(len(PARENTS)):
        path = [*read[0].astype(np.float64), *rest[0, seen[node]].astype(np.float64)]
        wanted = by_paper(arrays(params), sizes, path, window)
        np.testing.assert_allclose(found[0, node], wanted, atol=1e-5)
        if node == 2:  # its sibling counts: it would show
            path.insert(-1, rest[0, 1].astype(np.float64))
            other = by_paper(arrays(params), sizes, path, window)
            assert np.abs(found[0, node] - other).max() > 1e-3


def test_the_memory_is_latents_and_one_rotary_key(fixtures):
    model, *_ = jspec.models.load(fixtures / "deepseek_v3", with_tokenizer=False)
    cache = model.init_memory(2, 32)
    sizes = model.config.latent
    assert {part.shape for part in cache.keys} == {(2, 1, 32, sizes.rotary_dim)}
    assert {part.shape for part in cache.values} == {(2, 1, 32, sizes.rank)}


def test_an_adapter_of_latents_is_the_model_with_it_merged(fixtures, tmp_path, recorded):
    attention = "model.layers.1.self_attn"
    modules = {"kv_a_proj_with_mqa": (14, 16), "q_b_proj": (40, 12), "o_proj": (16, 20)}
    modules = {f"{attention}.{name}": shape for name, shape in modules.items()}
    added = adapters.save(tmp_path / "one", modules, lora_alpha=2)
    base = fixtures / "deepseek_v3"
    merged = shutil.copytree(base, tmp_path / "merged")
    held = load_file(base / "model.safetensors")
    held = {name: weight + added.get(name, 0) for name, weight in held.items()}
    save_file(held, merged / "model.safetensors")
    plain = recorded("deepseek_v3")
    given = *tiny.causal(plain.tokens), None
    wanted = jspec.models.load(merged, with_tokenizer=False)
    found = jspec.models.load(base, with_tokenizer=False, adapters={"one": tmp_path / "one"})
    params = found.model.choose(found.params, ["one", None])
    logits = jax.jit(found.model.apply)(params, *given).logits
    alone = plain.forward(wanted.params, *given).logits
    np.testing.assert_allclose(logits[0], alone[0], atol=1e-4)
    np.testing.assert_allclose(logits[1], plain.logits[1], atol=1e-4)
    assert np.abs(alone[0] - plain.logits[0]).max() > 0.1


def test_an_adapter_of_the_absorbed_matrices_is_refused(fixtures, tmp_path):
    adapters.save(tmp_path / "one", {"model.layers.0.self_attn.kv_b_proj": (44, 10)})
    with pytest.raises(jspec.InputError, match=r"adapts 2 tensors .*kv_b_proj"):
        jspec.models.load(
            fixtures / "deepseek_v3", with_tokenizer=False, adapters={"one": tmp_path / "one"}
        )


NAMES = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "granite4")


@pytest.fixture(params=quick.only(NAMES, NAMES[0]))
def found(request, recorded):
    return recorded(request.param)


def test_products_give_the_tokens_of_steps(found):
    """Uses the program of other devices, and of a CPU without kernels."""
    with native.disable():
        output = tiny.forward(found.model, found.params, found.tokens)
    np.testing.assert_allclose(output.logits, found.logits, atol=1e-4, rtol=0)


def test_the_memory_of_a_state_does_not_grow_with_the_capacity(found):
    short, long = (jax.eval_shape(lambda s=s: found.model.init_memory(2, s)) for s in (8, 64))
    assert isinstance(short, HybridMemory)
    assert jax.tree.map(jnp.shape, short.recurrent) == jax.tree.map(jnp.shape, long.recurrent)
    assert short.attention.capacity == 8 and long.attention.capacity == 64


def test_it_is_refused_as_a_draft_model(found):
    with pytest.raises(jspec.InputError, match="until"):
        jspec.decode(
            found.model, found.params, found.tokens, max_new_tokens=4,
            drafter=jspec.SpeculativeDecoding(found.model, 2), drafter_params=found.params,
        )  # fmt: skip


def test_adapters_are_refused(fixtures, tmp_path):
    with pytest.raises(jspec.InputError, match="adapters on a Hybrid, whose recurrent states"):
        jspec.models.load(fixtures / "granite4", with_tokenizer=False, adapters={"mine": tmp_path})


def test_the_memory_holds_the_keys_of_the_layers_that_have_their_own(recorded):
    """Three of six layers, of two sizes; the memory of all would be twice as large."""
    model = recorded("gemma4").model
    memory = model.init_memory(2, 16)
    heads, near, far = model.config.num_kv_heads, model.config.head_dim, 16
    lanes = [near, near, far]
    assert [held.shape for held in memory.keys] == [(2, heads, 16, own) for own in lanes]
    assert [held.shape for held in memory.values] == [(2, heads, 16, own) for own in lanes]
    assert [layer.keys_of for layer in model.kinds] == [None, None, None, 1, 1, 2]


def test_layers_that_do_not_fit_are_refused():
    sizes = dict(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_heads=2, num_kv_heads=2, head_dim=4,
        context=9,
    )  # fmt: skip

    def make(kind, *layers):
        return kind(LlamaConfig(**sizes, num_layers=len(layers), layers=layers))

    own, llama, delta = Layer(None), jspec.models.Llama, jspec.models.DeltaNet
    shared = make(llama, own, replace(own, keys_of=0)).init_memory(1, 4)
    assert shared.keys[0].shape == (1, 2, 4, 4)
    refusals.check([
        (lambda: llama(config(SIZES, num_kv_heads=3)), "num_kv_heads is 3, and latents are kept"),
        (lambda: llama(config(SIZES, layers=(own,))), "layer 0 has no rope"),
        (lambda: tiny.model(layers=(Layer(ROPE),)), "layers describes 1 of 2 layers"),
        (lambda: delta(3, 4, 8, 8), "num_key_heads is 3, which does not divide"),
        (lambda: make(jspec.models.Hybrid, Layer(None, mixer=delta(2, 4, 8, 8))),
         "none of the layers is attention"),
        (lambda: make(llama, own, replace(own, keys_of=2)),
         "layer 1 reads the keys of layer 2; let it read"),
        (lambda: make(llama, own, replace(own, keys_of=0), own), "before it that has its own"),
        (lambda: make(llama, own, replace(own, keys_of=0, head_dim=8)),
         "2 key-value heads of 8 lanes and reads layer"),
    ])  # fmt: skip
