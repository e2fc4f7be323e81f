"""Small EAGLE-3.1 and EAGLE-4 heads in their layouts, against the forward pass in float64."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from published_heads import LLAMA, TARGET, check_decoding, check_saving
from safetensors.numpy import save_file

import jspec
import jspec.models
from jspec.models import heads
from jspec.models.heads import candidates, published

V, E, HEADS, KV, D, INNER = tiny.VOCAB, 16, 4, 2, 4, 24
THETA, EPS, RANK, COUNT = 5000.0, 1e-5, 5, 6
HEAD = TARGET.params["params"].get("head", TARGET.params["params"]["embed"])
EMBED = np.asarray(TARGET.params["params"]["embed"], np.float64)
THIRD = {"fc_norm": True, "norm_output": True}
SPECULATORS = {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True}
FOURTH = THIRD | {
    "architectures": ["LlamaForCausalLMEagle4"],
    "layer_types": ["sliding_attention"],
    "sliding_window": 3,
    "efficient_lm_head_config": {"type": "low_rank", "rank": RANK, "num_candidates": COUNT},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True},
}


def normal(*shape, seed=0):
    return 0.3 * np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def tensors(config, prefix=""):
    place = "layers.0"
    made = {
        "fc.weight": normal(E, 3 * E),
        f"{place}.self_attn.q_proj.weight": normal(HEADS * D, 2 * E, seed=1),
        f"{place}.self_attn.k_proj.weight": normal(KV * D, 2 * E, seed=2),
        f"{place}.self_attn.v_proj.weight": normal(KV * D, 2 * E, seed=3),
        f"{place}.self_attn.o_proj.weight": normal(E, HEADS * D),
        f"{place}.mlp.gate_proj.weight": normal(INNER, E, seed=4),
        f"{place}.mlp.up_proj.weight": normal(INNER, E, seed=5),
        f"{place}.mlp.down_proj.weight": normal(E, INNER),
        "norm.weight": 1 + normal(E, seed=11),
    }
    for number, name in enumerate(("input_layernorm", "hidden_norm", "post_attention_layernorm")):
        made[f"{place}.{name}.weight"] = 1 + normal(E, seed=6 + number)
    if config.get("fc_norm"):
        made |= {f"fc_norm.{tap}.weight": 1 + normal(E, seed=20 + tap) for tap in range(3)}
    if config.get("norm_before_fc"):
        made["input_norm.weight"] = 1 + normal(3 * E, seed=30)
    made = {prefix + name: tensor for name, tensor in made.items()}
    made["lm_head.weight"] = normal(V, E, seed=12)
    if "efficient_lm_head_config" in config:
        made["efficient_lm_head_down_proj.weight"] = normal(RANK, E, seed=13)
        made["efficient_lm_head.weight"] = normal(V, RANK, seed=14)
    return made


def write(folder, config, made=None, prefix=""):
    folder.mkdir(exist_ok=True)
    made = tensors(config, prefix) if made is None else made
    save_file(made, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(LLAMA | config))
    return folder


def norm(x, weight):
    return weight * x / np.sqrt(np.square(x).mean(-1, keepdims=True) + EPS)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def forward(config, made, states, tokens):
    """llama_eagle3.py of vLLM, with the flags of EAGLE-3.1; EAGLE-4's window and candidates."""
    made = {name: tensor.astype(np.float64) for name, tensor in made.items()}
    place, count = "layers.0", len(tokens)
    x = states
    if x.shape[-1] != E:
        if config.get("norm_before_fc"):
            x = norm(x, made["input_norm.weight"])
        if config.get("fc_norm"):
            parts = np.split(x, 3, axis=-1)
            weights = [made[f"fc_norm.{tap}.weight"] for tap in range(3)]
            x = np.concatenate([norm(*both) for both in zip(parts, weights, strict=True)], -1)
        x = x @ made["fc.weight"].T
    behind = norm(x, made[f"{place}.hidden_norm.weight"])
    read = norm(
        made.get("embed_tokens.weight", EMBED)[tokens], made[f"{place}.input_layernorm.weight"]
    )
    read = np.concatenate([read, behind], -1)
    x = behind if config.get("norm_before_residual") else x
    q, k, v = (
        (read @ made[f"{place}.self_attn.{part}_proj.weight"].T).reshape(count, -1, D)
        for part in "qkv"
    )
    angles = np.arange(count)[:, None] * THETA ** -(np.arange(0, D, 2) / D)
    cos, sin = (np.concatenate([f(angles)] * 2, -1)[:, None] for f in (np.cos, np.sin))

    def turn(y):
        return y * cos + np.concatenate([-y[..., D // 2 :], y[..., : D // 2]], -1) * sin

    k, v = (np.repeat(part, HEADS // KV, axis=1) for part in (turn(k), v))
    scores = np.einsum("qhd,khd->hqk", turn(q), k) / D**0.5
    ago = np.arange(count)[:, None] - np.arange(count)
    seen = (ago >= 0) & (ago < config.get("sliding_window", count))
    mixed = np.einsum("hqk,khd->qhd", softmax(np.where(seen, scores, -np.inf)), v)
    x = x + mixed.reshape(count, -1) @ made[f"{place}.self_attn.o_proj.weight"].T
    read = norm(x, made[f"{place}.post_attention_layernorm.weight"])
    gate, up, down = (made[f"{place}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    gate = read @ gate.T
    x = x + (gate / (1 + np.exp(-gate)) * (read @ up.T)) @ down.T
    last = norm(x, made["norm.weight"])
    logits = last @ made["lm_head.weight"].T
    if "efficient_lm_head_config" in config:
        low = (
            last @ made["efficient_lm_head_down_proj.weight"].T @ made["efficient_lm_head.weight"].T
        )
        kept = np.argsort(-low, axis=-1, kind="stable")[:, :COUNT]
        wide = np.full_like(logits, -np.inf)
        np.put_along_axis(wide, kept, np.take_along_axis(logits, kept, -1), -1)
        logits = wide
    return last if config.get("norm_output") else x, logits


def apply(head, variables, states, tokens):
    states = jnp.asarray(states, jnp.float32)[None]
    return jax.jit(head.apply)(variables, states, *tiny.causal(tokens[None]), None)


TOKENS = np.array([4, 1, 22, 0, 9, 9, 13])


@pytest.mark.parametrize(
    ("config", "prefix"),
    [({}, ""), (THIRD, "model."), (SPECULATORS, "model."), (FOURTH, "")],
    ids=["3", "3.1", "speculators", "4"],
)
def test_a_head_computes_what_is_published(tmp_path, config, prefix):
    folder = write(tmp_path / "head", config, prefix=prefix)
    head, variables = published.read(folder, TARGET)
    made, states = tensors(config), normal(7, 3 * E, seed=3).astype(np.float64)
    for _ in range(2):  # and from its own states
        x, logits = forward(config, made, states, TOKENS)
        output = apply(head, variables, states, TOKENS)
        np.testing.assert_allclose(output.hidden[0], x, rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(output.logits[0], logits, rtol=2e-4, atol=2e-4)
        np.testing.assert_array_equal(head.score(variables, output.hidden), output.logits)
        states = x


@pytest.mark.parametrize("name", ["fc_norm", "norm_output", "sliding_window"])
def test_an_omitted_part_is_detected(tmp_path, name):
    """The oracle without one thing is far from the head with it."""
    head, variables = published.read(write(tmp_path / "head", FOURTH), TARGET)
    states = normal(7, 3 * E, seed=3).astype(np.float64)
    other = {key: value for key, value in FOURTH.items() if key != name}
    x, _ = forward(other, tensors(FOURTH), states, TOKENS)
    found = apply(head, variables, states, TOKENS)
    assert np.abs(np.asarray(found.hidden[0]) - x).max() > 0.05


def test_taps_of_the_fourth_are_outputs(tmp_path):
    """SGLang's and eagle-harness's numbers; EAGLE-3's are of inputs, as vLLM has them."""
    head, _, target = heads.load(write(tmp_path / "four", FOURTH), TARGET)
    assert head.config.taps == target.model.taps == (1, 3, 5)
    third = THIRD | {"eagle_config": FOURTH["eagle_config"]}
    assert published.read(write(tmp_path / "three", third), TARGET)[0].config.taps == (0, 2, 4)
    assert head.config.layers[0].window == 3
    free = {k: v for k, v in FOURTH.items() if k not in ("layer_types", "sliding_window")}
    assert published.read(write(tmp_path / "free", free), TARGET)[0].config.layers == ()
    alone = {k: v for k, v in FOURTH.items() if k != "layer_types"}
    assert published.read(write(tmp_path / "alone", alone), TARGET)[0].config.layers[0].window == 3


def test_factors_that_are_not_there_are_the_svd(tmp_path):
    made = {k: v for k, v in tensors(FOURTH).items() if "efficient" not in k}
    _, variables = published.read(write(tmp_path / "head", FOURTH, made), TARGET)
    left, values, right = np.linalg.svd(made["lm_head.weight"].astype(np.float64))
    best = (left[:, :RANK] * values[:RANK]) @ right[:RANK]
    found = variables["candidates"]
    np.testing.assert_allclose(found["up"] @ found["down"], best, atol=1e-5)
    weighted = FOURTH | {"efficient_lm_head_config": {"type": "weighted_low_rank", "rank": RANK,
                                                      "num_candidates": COUNT}}  # fmt: skip
    with pytest.raises(ValueError, match="type = 'weighted_low_rank', which jspec does not"):
        published.read(write(tmp_path / "weighted", weighted, made), TARGET)


OWN = {"embed_tokens.weight": normal(V, E, seed=40)}
UNSCORED = np.array([3, 8, 9, 20])


@pytest.mark.parametrize("drops", [(), ("lm_head.weight",)], ids=["own head", "the target's"])
@pytest.mark.parametrize("adds", [{}, OWN], ids=["the target's embeddings", "its own"])
def test_a_table_that_is_not_there_is_the_targets(tmp_path, drops, adds):
    made = {k: v for k, v in (tensors(THIRD) | adds).items() if k not in drops}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        head, variables = published.read(write(tmp_path / "head", THIRD, made), TARGET)
    told = [one for one in warned if "embeddings of its own, 1" in str(one.message)]
    assert len(told) == bool(adds)
    check_saving(tmp_path / "saved", head, variables)
    whole = {"lm_head.weight": np.asarray(HEAD, np.float64)} | made
    states = normal(7, 3 * E, seed=3).astype(np.float64)
    x, logits = forward(THIRD, whole, states, TOKENS)
    output = apply(head, variables, states, TOKENS)
    np.testing.assert_allclose(output.hidden[0], x, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(output.logits[0], logits, rtol=2e-4, atol=2e-4)


def test_the_targets_head_scores_the_tokens_of_a_list(tmp_path):
    scored = np.delete(np.arange(V), UNSCORED)
    made = {k: v for k, v in tensors({}).items() if k != "lm_head.weight"}
    listed = made | {"d2t": scored - np.arange(len(scored))}
    states = normal(7, 3 * E, seed=3)
    found, want = (
        apply(*published.read(write(tmp_path / name, {}, one), TARGET), states, TOKENS).logits[0]
        for name, one in (("listed", listed), ("all", made))
    )
    np.testing.assert_allclose(found[:, scored], want[:, scored], rtol=1e-5, atol=1e-5)
    assert np.isneginf(found[:, UNSCORED]).all()


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_the_first_eagle_has_tables_of_its_own_too(tmp_path, name):
    made = {k: v for k, v in tensors({}).items() if k.startswith(("layers.0.self", "layers.0.mlp"))}
    made |= {k: v[:, :E] for k, v in made.items() if v.shape[1] == 2 * E}
    made |= {"fc.weight": normal(E, 2 * E), "layers.0.post_attention_layernorm.weight": normal(E)}
    own = normal(V, E, seed=50)
    with pytest.warns(UserWarning, match="of its own, 1"):
        head, variables = published.read(write(tmp_path / "own", {}, made | {name: own}), TARGET)
    part = {"embed_tokens.weight": "embed", "lm_head.weight": "head"}[name]
    np.testing.assert_array_equal(variables["params"][part], own)
    assert part not in variables["target"]
    check_saving(tmp_path / "saved", head, variables)
    plain, lent = published.read(write(tmp_path / "plain", {}, made), TARGET)
    states = normal(7, E, seed=3)
    swapped = {**lent, "target": {**lent["target"], part: jnp.asarray(own)}}
    np.testing.assert_allclose(
        apply(head, variables, states, TOKENS).logits,
        apply(plain, swapped, states, TOKENS).logits,
        rtol=1e-6,
    )


@pytest.mark.slow
@pytest.mark.parametrize("config", [THIRD, FOURTH], ids=["3.1", "4"])
def test_it_decodes(tmp_path, config):
    loaded = heads.load(write(tmp_path / "head", config), TARGET, only="eagle3")
    drafter = jspec.EAGLE2(loaded.head, num_speculative_tokens=5, max_depth=3, beam=3)
    sampling = jspec.Sampling(temperature=0.7)
    check_decoding(drafter, loaded, max_new_tokens=10, key=2, sampling=sampling)


@pytest.mark.parametrize("config", [THIRD, FOURTH], ids=["3.1", "4"])
def test_it_is_saved_in_our_format(tmp_path, config):
    head, variables, _ = heads.load(write(tmp_path / "head", config), TARGET, only="eagle3")
    check_saving(tmp_path / "saved", head, variables)


def without(name):
    return {key: value for key, value in tensors(FOURTH).items() if key != name}


def test_variants_are_refused(tmp_path):
    for config, made, why in (
        ({"attn_norm": True}, None, "attn_norm = True, which jspec does not implement"),
        ({"enable_moe": True}, None, "enable_moe = True, which jspec does not implement"),
        ({"use_rope": False}, None, "use_rope = False, which jspec does not implement"),
        ({"twice_as_good": 1}, None, "the field 'twice_as_good', which an EAGLE-4 head"),
        ({"efficient_lm_head_config": {"type": "tree"}}, None, "type = 'tree', which jspec"),
        (
            {"efficient_lm_head_config": {"type": "low_rank", "rank": 17, "num_candidates": 4}},
            None,
            r"candidate_rank is 17; pass an integer in 0 \.\. 16, the width",
        ),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "all"}}, None, "layer numbers"),
        ({"sliding_window": 0}, None, "sliding_window = 0"),
        ({}, without("fc_norm.1.weight"), r"lacks 1 tensor \(fc_norm.1.weight\)"),
        ({"fc_norm": False}, None, r"holds 3 tensors \(fc_norm.0.weight.* no place for"),
        ({}, without("efficient_lm_head.weight"), "efficient_lm_head.weight in shape None"),
        ({"hidden_size": 8}, None, "of a head that reads states of width 24"),
    ):
        with pytest.raises(ValueError, match=why):
            heads.load(write(tmp_path / "head", FOURTH | config, made or tensors(FOURTH)), TARGET)


def test_the_factors_are_the_nearest_of_their_rank():
    table = normal(40, 12, seed=2).astype(np.float64)
    left, values, right = np.linalg.svd(table, full_matrices=False)
    for rank in (1, 5, 12):
        found = candidates.factors(table, rank)
        best = (left[:, :rank] * values[:rank]) @ right[:rank]
        np.testing.assert_allclose(found["up"] @ found["down"], best, atol=1e-5)
