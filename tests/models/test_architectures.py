"""Parts of the families' layers: routers, experts, windows, frequencies, and saving them."""

import runpy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx
from safetensors.numpy import load_file

import jspec
import jspec.models
from jspec.models import (
    ExpertGroups,
    Experts,
    Layer,
    Rope,
    blocks,
    checkpoint,
    experts,
    precision,
)
from jspec.models.activations import apply_gate
from jspec.testing import check_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/libraries"


def test_routes_are_those_of_a_loop_over_tokens():
    """One by one and sorted by expert, with experts that no token and that many tokens chose."""
    draw = np.random.default_rng(0)
    count, inner, width = 4, 6, 8
    x = draw.normal(size=(7, width)).astype(np.float32)
    gate_up = draw.normal(size=(count, 2 * inner, width)).astype(np.float32)
    down = draw.normal(size=(count, width, inner)).astype(np.float32)
    routes = np.array([[2, 0], [2, 3], [2, 0], [0, 2], [2, 3], [2, 0], [2, 0]])  # never 1
    wanted = np.zeros((7, 2, width))
    for row, slot in np.ndindex(7, 2):
        chosen = routes[row, slot]
        gate, up = np.split(gate_up[chosen] @ x[row].astype(np.float64), 2)
        wanted[row, slot] = down[chosen] @ (np.maximum(gate, 0) * up)
    given = [jnp.asarray(array) for array in (x, routes, gate_up, down)]
    for run in (experts.each, partial(experts.run_by_expert, places=jnp.arange(count))):
        found = jax.jit(partial(run, feed=partial(apply_gate, jax.nn.relu)))(*given)
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def mixed() -> jspec.models.Llama:
    """A model of everything: windows, a layer without positions, experts, caps, four norms."""
    rope = Rope(100.0, jspec.models.LinearScaling(2.0), lanes=2)
    layers = (Layer(rope, window=3), Layer(None, window=5, experts=Experts(4, 2, 8)), Layer(Rope()))
    return tiny.model(
        num_layers=3, layers=layers, qk_norm=True, post_norm=True, norm_offset=1.0,
        activation="gelu_new", embed_scale=2.0, attention_scale=0.7, attention_cap=3.0,
        logit_cap=5.0,
    )  # fmt: skip


# One family of each kind; trees and caches of the others are in test_families.py.
CONTRACT = [
    *((name, {}) for name in (
        *("gemma3", "phi3", "olmo2", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe"),
        *("granite4", "pythia", "glm4_moe", "glm4_moe_lite", "deepseek_v2", "deepseek_v3"),
        *("gpt_oss", "gemma4", "gemma4_moe", "gemma4_unified", "smollm3"),
    )),
    *((name, {"kv_dtype": "int8"}) for name in ("gpt2", "pythia", "deepseek_v3", "tiny")),
    ("tiny", {"kv_dtype": jnp.float8_e4m3fn, "scan_layers": True}),
    *(("tiny", {"param_dtype": kind, "scan_layers": True})
      for kind in ("int8", "float8_e4m3fn", "w8a8", *blocks.FORMATS)),
    ("everything", {}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), CONTRACT, ids=str)
def test_models_keep_the_contract(name, how, fixtures):
    if name in ("tiny", "everything"):
        wide = dict(hidden_size=256, head_dim=16, intermediate_size=96)
        model = mixed() if name == "everything" else tiny.model(**wide)
        held = precision.find(how.get("param_dtype", "float32"), as_weights=True)
        model, one = model.clone(**how | {"param_dtype": held}), jnp.zeros((1, 1), jnp.int32)
        params = jax.jit(model.init)(jax.random.key(0), one, one, jnp.ones((1, 1, 1), bool))
        assert not check_model(model, params).skipped
    else:
        loaded = jspec.models.load(fixtures / name, with_tokenizer=False, **how)
        recurrent = isinstance(loaded.model, jspec.models.Hybrid)
        assert len(check_model(loaded.model, loaded.params).skipped) == 2 * recurrent


def test_other_objects_than_nnx_modules_in_evaluation_mode_are_refused():
    def built(*parts):
        module = nnx.Dict(body=nnx.List(parts))
        return jspec.models.from_nnx(module, lambda *_: None, **sizes)

    sizes, rngs = dict(vocab_size=8, num_layers=1, num_kv_heads=1, head_dim=1), nnx.Rngs(0)
    with pytest.raises(jspec.InputError, match=r"module is a Llama; pass a flax\.nnx\.Module"):
        jspec.models.from_nnx(tiny.model(), lambda *_: None, **sizes)
    linear = nnx.Linear(2, 2, rngs=rngs)
    attention = nnx.MultiHeadAttention(2, 4, dropout_rate=0.1, rngs=rngs)
    attention.train()
    for part in (nnx.Dropout(0.1, rngs=rngs), nnx.BatchNorm(2, rngs=rngs), attention):
        kind = type(part).__name__
        with pytest.raises(jspec.InputError, match=rf"body\.1, a {kind}, .*; call module\.eval"):
            built(linear, part)
        part.eval()
        built(linear, part)
    built(nnx.Dropout(0.0, rngs=rngs))
    linear.rate, linear.deterministic = None, False  # of some other meaning
    built(linear)


@dataclass(eq=True)  # no hash, as configurations of libraries are
class Sizes:
    vocab_size: int = 16
    width: int = 8


class WithCache(nnx.Module):
    """One head that writes into a cache of its own, in the convention of gemma and tunix."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.sizes = sizes
        self.embed = nnx.Embed(sizes.vocab_size, sizes.width, rngs=rngs)
        self.qkv = nnx.Linear(sizes.width, 3 * sizes.width, rngs=rngs)
        self.head = nnx.Linear(sizes.width, sizes.vocab_size, rngs=rngs)

    def __call__(self, tokens, positions, cache, mask):
        x = self.embed(tokens) + jnp.sin(positions[..., None] / 10)
        query, *own = jnp.split(self.qkv(x), 3, axis=-1)
        held = cache["layer_0"]
        at = (0, held["end_index"][0], 0, 0)
        keys, values = (
            jax.lax.dynamic_update_slice(held[name], new[:, :, None], at)
            for name, new in zip("kv", own, strict=True)
        )
        # A window by the positions that the cache has, as gemma's.
        where = jax.lax.dynamic_update_slice(held["positions"], positions, at[:2])
        mask = mask & (positions[..., None] - where[:, None] < 5)
        scores = jnp.einsum("bnd,bshd->bns", query, keys)
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
        logits = self.head(x + jnp.einsum("bns,bshd->bnd", weights, values))
        return logits, {"layer_0": {"k": keys, "v": values, "end_index": held["end_index"]}}


def call(module, *given):
    return module(*given)


@pytest.mark.slow
def test_a_library_that_keeps_a_cache_of_layers_keeps_the_contract():
    module = WithCache(Sizes(), nnx.Rngs(0))
    sizes = dict(vocab_size=16, num_layers=1, num_kv_heads=1, head_dim=8)
    model, params = jspec.models.from_nnx(module, jspec.models.LayerCaches(call), **sizes)
    assert not set(map(type, jax.tree.leaves(params))) & {nnx.Param}
    assert not check_model(model, params).skipped
    ask = dict(prompt=[[1, 2, 3, 1, 2, 3]], max_new_tokens=20)
    result = jspec.decode(model, params, drafter=jspec.PromptLookup(4), **ask)
    text, whole, count = list(ask["prompt"][0]), nnx.jit(call), 26
    empty = jnp.zeros((1, count, 1, 8))
    cache = dict(k=empty, v=empty, end_index=jnp.zeros(1, jnp.int32))
    cache["positions"] = jnp.zeros((1, count), jnp.int32)
    places = jnp.arange(count, dtype=jnp.int32)[None]
    causal = jnp.tril(jnp.ones((1, count, count), bool))
    for _ in range(20):  # by the module alone, over the whole text
        tokens = jnp.array([text + [0] * (count - len(text))])
        logits, _ = whole(module, tokens, places, {"layer_0": cache}, causal)
        text.append(int(logits[0, len(text) - 1].argmax()))
    assert result.tokens[0].tolist() == text[6:]


def test_the_llama_of_another_code_base_runs_unchanged():
    """google-tunix has caches and masks of its own, and nothing of ours."""
    llama = pytest.importorskip("tunix.models.llama3.model", reason="needs google-tunix")
    config = llama.ModelConfig(
        num_layers=2, vocab_size=40, embed_dim=16, hidden_dim=32, num_heads=4, head_dim=4,
        num_kv_heads=2, rope_theta=10000, norm_eps=1e-5, weight_tying=False,
    )  # fmt: skip
    module = llama.Llama3(config, rngs=nnx.Rngs(0))
    sizes = dict(vocab_size=40, num_layers=2, num_kv_heads=2, head_dim=4)
    model, params = jspec.models.from_nnx(module, jspec.models.LayerCaches(call), **sizes)
    assert not check_model(model, params).skipped


@pytest.mark.slow
@pytest.mark.parametrize(("example", "library"), [
    ("tunix_qwen3", "tunix.models.qwen3.model"), ("gemma_library", "gemma.gm"),
    ("equinox_model", "equinox"), ("linen_model", "flax.linen"),
])  # fmt: skip
def test_a_model_of_another_library_has_its_own_tokens(example, library, capsys):
    """In at most 60 lines, the model of a small module among them."""
    assert len((EXAMPLES / f"{example}.py").read_text("utf-8").splitlines()) <= 60
    pytest.importorskip(library, reason=f"needs {library}")
    runpy.run_path(str(EXAMPLES / f"{example}.py"))["main"]()
    assert "own" in capsys.readouterr().out


SCORES = np.random.default_rng(0).normal(size=(2, 40, 8))
CORRECTION = np.random.default_rng(1).normal(size=8) / 4


def by_hand(how: Experts, scores: np.ndarray, correction: np.ndarray | None) -> np.ndarray:
    """The factor of each expert's output; 0: the token does not go through that expert.

    DeepSeek-V2 (arXiv 2405.04434), section 2.2; DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
    """
    found = np.zeros(scores.shape)
    for place in np.ndindex(scores.shape[:-1]):
        own = scores[place]
        shares = 1 / (1 + np.exp(-own)) if how.sigmoid else np.exp(own) / np.exp(own).sum()
        ranked = shares if correction is None else shares + correction
        allowed = range(len(own))
        if how.groups is not None:
            size = len(own) // how.groups.num_groups
            groups = [range(at, at + size) for at in range(0, len(own), size)]
            strength = {
                group: sum(sorted(ranked[list(group)])[-how.groups.num_ranking :])
                for group in groups
            }
            best = sorted(groups, key=lambda group: -strength[group])
            allowed = [one for group in best[: how.groups.num_chosen_groups] for one in group]
        chosen = sorted(allowed, key=lambda one: -ranked[one])[: how.num_chosen]
        whole = shares[chosen].sum() if how.normalised else 1.0
        found[place][chosen] = how.scale * shares[chosen] / whole
    return found


def by_router(how: Experts, scores: np.ndarray, correction: np.ndarray | None) -> np.ndarray:
    given = None if correction is None else jnp.asarray(correction, jnp.float32)
    shares, chosen = experts.route(how, jnp.asarray(scores, jnp.float32), given)
    found = np.zeros(scores.shape)
    np.put_along_axis(found, np.asarray(chosen), np.asarray(shares, np.float64), axis=-1)
    return found


SOFTMAX = Experts(8, 3, 4, normalised=False, groups=ExpertGroups(4, 2), scale=16.0)
SIGMOID = Experts(8, 3, 4, sigmoid=True, groups=ExpertGroups(4, 2, 2), scale=2.5)


@pytest.mark.parametrize(("how", "correction"), [
    (Experts(8, 3, 4), None), (SOFTMAX, None), (SIGMOID, None), (SIGMOID, CORRECTION),
    (Experts(8, 3, 4, sigmoid=True), CORRECTION),
])  # fmt: skip
def test_tokens_are_routed_as_by_hand(how, correction):
    wanted = by_hand(how, SCORES, correction)
    np.testing.assert_allclose(by_router(how, SCORES, correction), wanted, rtol=1e-5)


def test_each_part_of_the_rule_shows():
    """Without groups, without the correction, by the best one of a group: other experts."""
    wanted = by_hand(SIGMOID, SCORES, CORRECTION)
    others = [
        by_router(SIGMOID, SCORES, None),
        by_router(Experts(8, 3, 4, sigmoid=True, scale=2.5), SCORES, CORRECTION),
        by_router(replace(SIGMOID, groups=ExpertGroups(4, 2, 1)), SCORES, CORRECTION),
    ]
    for other in others:
        assert ((other > 0) != (wanted > 0)).any()
    # The correction decides on the choice alone.
    same = (by_router(SIGMOID, SCORES, CORRECTION + 1) > 0) == (wanted > 0)
    assert same.all()


def test_groups_that_do_not_fit_are_refused():
    for groups, chosen, message in (
        (ExpertGroups(3, 1), 2, "num_groups is 3, which does not divide the 8 experts"),
        (ExpertGroups(4, 5), 2, "num_chosen_groups is 5; pass an integer in 1 .. 4"),
        (ExpertGroups(4, 2, 3), 2, "num_ranking is 3; pass an integer in 1 .. 2"),
        (ExpertGroups(4, 1), 3, "num_chosen is 3; pass an integer in 1 .. 2"),
    ):
        with pytest.raises(jspec.InputError, match=message):
            Experts(8, chosen, 4, groups=groups)


def test_the_bias_of_the_choice_stays_float32(fixtures):
    """Rounded to bfloat16, whose steps are 2^-8 of it, it would order other experts first."""
    folder = fixtures / "deepseek_v3"
    for how in (dict(), dict(param_dtype="int8")):
        dtype = dict(param_dtype="bfloat16") | how
        loaded = jspec.models.load(folder, "bfloat16", **dtype, with_tokenizer=False)
        held = loaded.params["params"]["layers_1"]["experts"]
        assert held["correction"].dtype == jnp.float32
        assert held["router"]["weight"].dtype == jnp.bfloat16
        created = checkpoint.shapes(loaded.model)["params"]["layers_1"]["experts"]
        assert created["correction"].dtype == jnp.float32
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    np.testing.assert_array_equal(held["correction"], load_file(folder / "model.safetensors")[name])
