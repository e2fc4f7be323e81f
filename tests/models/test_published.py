"""Published EAGLE and Medusa heads, small and in their layouts, against a pass in float64."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from oracle import medusa
from published_heads import (
    EMBED,
    HEAD,
    IDS,
    LLAMA,
    MODEL,
    SHAPE,
    TARGET,
    check_saving,
    eagle_tensors,
    layer_tensors,
    norm,
    normal,
    other,
    without,
    write,
)  # fmt: skip

from jspec.models import heads
from jspec.models.heads import published

V, E, D, RANK, COUNT = tiny.VOCAB, 16, 4, 5, 6
SOME = {
    "d2t": np.array(IDS) - np.arange(len(IDS)),
    "t2d": np.isin(np.arange(V), IDS),
    "lm_head.weight": normal(len(IDS), E, seed=12),
}
"""What a head has that scores some tokens."""
THIRD = {"fc_norm": True, "norm_output": True}
SPECULATORS = {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True}
FOURTH = THIRD | {
    "architectures": ["LlamaForCausalLMEagle4"],
    "layer_types": ["sliding_attention"],
    "sliding_window": 3,
    "efficient_lm_head_config": {"type": "low_rank", "rank": RANK, "num_candidates": COUNT},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True},
}


def eagle3_tensors(config, prefix="", place="layers.0"):
    norms = "input_layernorm", "hidden_norm", "post_attention_layernorm"
    tensors = {"fc.weight": normal(E, 3 * E), "norm.weight": 1 + normal(E, seed=11)}
    tensors |= layer_tensors(2 * E, norms)
    if config.get("fc_norm"):
        tensors |= {f"fc_norm.{tap}.weight": 1 + normal(E, seed=20 + tap) for tap in range(3)}
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = 1 + normal(3 * E, seed=30)
    tensors = {prefix + name.replace("layers.0", place): x for name, x in tensors.items()}
    tensors["lm_head.weight"] = normal(V, E, seed=12)
    if "efficient_lm_head_config" in config:
        tensors["efficient_lm_head_down_proj.weight"] = normal(RANK, E, seed=13)
        tensors["efficient_lm_head.weight"] = normal(V, RANK, seed=14)
    return tensors


def medusa_tensors(prefix=""):
    tensors = {}
    for number in range(3):
        for block in range(2):
            name = f"{prefix}{number}.{block}.linear"
            tensors[f"{name}.weight"] = normal(E, E, seed=10 * number + block)
            tensors[f"{name}.bias"] = normal(E, seed=10 * number + block)
        tensors[f"{prefix}{number}.2.weight"] = normal(V, E, seed=number)
    return tensors


HEADS = {
    # kind, tensors, file, config
    "1": ("eagle", eagle_tensors() | {"embed_tokens.weight": EMBED}, "pytorch_model.bin", {}),
    "cnets": ("eagle3", eagle3_tensors({}, place="midlayer") | SOME, "pytorch_model.bin", {}),
    # Its number of heads is wrong, as in published ones.
    "medusa": ("medusa", medusa_tensors(), "medusa_lm_head.pt", {"medusa_num_heads": 2}),
    "3.1": ("eagle3", eagle3_tensors(THIRD), "model.safetensors", THIRD),
    "4": ("eagle3", eagle3_tensors(FOURTH), "model.safetensors", FOURTH),
}


def save_layout(folder, name):
    _, tensors, file, config = HEADS[name]
    return write(folder, tensors, LLAMA | config, file)


def save_head(folder, tensors, config=None, file="model.safetensors"):
    return write(folder, tensors, LLAMA | (config or {}), file)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attention(x, tensors, window=None):
    """Causal attention of one sequence [N, inputs], as in Hugging Face's Llama."""
    count = len(x)
    q, k, v = (
        (x @ tensors[f"layers.0.self_attn.{part}_proj.weight"].T).reshape(count, -1, D)
        for part in "qkv"
    )
    angles = np.arange(count)[:, None] * SHAPE["rope_theta"] ** -(np.arange(0, D, 2) / D)
    cos, sin = (np.concatenate([f(angles)] * 2, -1)[:, None] for f in (np.cos, np.sin))

    def turn(y):
        return y * cos + np.concatenate([-y[..., D // 2 :], y[..., : D // 2]], -1) * sin

    k, v = (np.repeat(part, 2, axis=1) for part in (turn(k), v))
    scores = np.einsum("qhd,khd->hqk", turn(q), k) / D**0.5
    ago = np.arange(count)[:, None] - np.arange(count)
    seen = (ago >= 0) & (ago < (window or count))
    mixed = np.einsum("hqk,khd->qhd", softmax(np.where(seen, scores, -np.inf)), v)
    return mixed.reshape(count, -1) @ tensors["layers.0.self_attn.o_proj.weight"].T


def mlp(x, tensors):
    read = norm(x, tensors["layers.0.post_attention_layernorm.weight"])
    gate, up, down = (
        tensors[f"layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up", "down")
    )
    gate = read @ gate.T
    return (gate / (1 + np.exp(-gate)) * (read @ up.T)) @ down.T


def forward_eagle(config, tensors, states, tokens):
    """cnets1.py: embedding first, no norm at the entrance, the target's head on the output."""
    read = np.concatenate([tensors.get("embed_tokens.weight", EMBED)[tokens], states], -1)
    x = read @ tensors["fc.weight"].T + tensors.get("fc.bias", 0)
    x = x + attention(x, tensors)
    x = x + mlp(x, tensors)
    return x, x @ tensors.get("lm_head.weight", HEAD).T


def forward(config, tensors, states, tokens):
    """llama_eagle3.py of vLLM, with the flags of EAGLE-3.1; EAGLE-4's window and candidates."""
    x = states
    if x.shape[-1] != E:
        if config.get("norm_before_fc"):
            x = norm(x, tensors["input_norm.weight"])
        if config.get("fc_norm"):
            parts = np.split(x, 3, axis=-1)
            weights = [tensors[f"fc_norm.{tap}.weight"] for tap in range(3)]
            x = np.concatenate([norm(*both) for both in zip(parts, weights, strict=True)], -1)
        x = x @ tensors["fc.weight"].T
    behind = norm(x, tensors["layers.0.hidden_norm.weight"])
    embedded = tensors.get("embed_tokens.weight", EMBED)[tokens]
    read = norm(embedded, tensors["layers.0.input_layernorm.weight"])
    x = behind if config.get("norm_before_residual") else x
    x = x + attention(np.concatenate([read, behind], -1), tensors, config.get("sliding_window"))
    x = x + mlp(x, tensors)
    last = norm(x, tensors["norm.weight"])
    logits = last @ tensors.get("lm_head.weight", HEAD).T
    if "efficient_lm_head_config" in config:
        down, up = (tensors[f"efficient_lm_head{n}.weight"] for n in ("_down_proj", ""))
        best = np.argsort(-(last @ down.T @ up.T), axis=-1, kind="stable")[:, :COUNT]
        wide = np.full_like(logits, -np.inf)
        np.put_along_axis(wide, best, np.take_along_axis(logits, best, -1), -1)
        logits = wide
    if "d2t" in tensors:
        wide = np.full((len(logits), V), -np.inf)
        wide[:, IDS] = logits
        logits = wide
    return last if config.get("norm_output") else x, logits


def in_float64(tensors):
    """By the names of a head without a prefix."""
    names = {n: n.removeprefix("model.").replace("midlayer", "layers.0") for n in tensors}
    return {names[name]: x.astype(np.float64) for name, x in tensors.items()}


def apply(head, variables, states, tokens):
    states = jnp.asarray(states, jnp.float32)[None]
    return jax.jit(head.apply)(variables, states, *tiny.causal(tokens[None]), None)


TOKENS = np.array([4, 1, 22, 0, 9, 9, 13])


def check_computing(head, variables, config, tensors, run):
    """Checks a head against a pass in float64, and then from the states that this gives."""
    states = normal(7, head.features, seed=3).astype(np.float64)
    for _ in range(2):
        x, logits = run(config, in_float64(tensors), states, TOKENS)
        output = apply(head, variables, states, TOKENS)
        np.testing.assert_allclose(output.hidden[0], x, rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(output.logits[0], logits, rtol=2e-4, atol=2e-4)
        states = x
    return output


OWN, HEAD_TOO = (
    {"embed_tokens.weight": normal(V, E, seed=40)},
    {"lm_head.weight": normal(V, E, seed=50)},
)
BIN, SAFE = "pytorch_model.bin", "model.safetensors"


@pytest.mark.parametrize(
    ("tensors", "config", "file"),
    [
        (eagle_tensors(), {}, BIN),
        (eagle_tensors(bias=False) | OWN, {}, SAFE),
        (eagle_tensors() | HEAD_TOO, {}, SAFE),
        (eagle3_tensors({}, place="midlayer") | SOME, {}, BIN),
        (eagle3_tensors({}), {}, SAFE),
        (eagle3_tensors(THIRD, "model."), THIRD, SAFE),
        (eagle3_tensors(THIRD) | OWN, THIRD, SAFE),
        (without(eagle3_tensors(THIRD), "lm_head.weight"), THIRD, SAFE),
        (eagle3_tensors(SPECULATORS, "model."), SPECULATORS, SAFE),
        (eagle3_tensors(FOURTH), FOURTH, SAFE),
    ],
    ids=["1", "1 without bias, own embeddings", "1, own head", "cnets", "3", "3.1",
         "3.1, own embeddings", "3.1, the target's head", "speculators", "4"],
)  # fmt: skip
def test_a_head_of_pairs_computes_what_is_published(tmp_path, tensors, config, file):
    """A table that is not there is the target's; others are told of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        head, variables = published.read(
            save_head(tmp_path / "head", tensors, config, file), TARGET
        )
    held, first = in_float64(tensors), "norm.weight" not in in_float64(tensors)
    own = {"embed": "embed_tokens.weight" in held, "head": "lm_head.weight" in held}
    told = [one for one in warned if "of its own, 1" in str(one.message)]
    assert len(told) == (own["embed"] or (first and own["head"]))
    for name, lent in variables["target"].items():
        assert lent is TARGET.params["params"][name] and not own[name]
    output = check_computing(head, variables, config, tensors, forward_eagle if first else forward)
    np.testing.assert_array_equal(head.score(variables, output.hidden), output.logits)
    check_saving(tmp_path / "saved", head, variables)


@pytest.mark.parametrize("name", ["fc_norm", "norm_output", "sliding_window"])
def test_an_omitted_part_is_detected(tmp_path, name):
    """The oracle without one thing is far from the head with it."""
    head, variables = published.read(save_layout(tmp_path / "head", "4"), TARGET)
    states = normal(7, 3 * E, seed=3).astype(np.float64)
    x, _ = forward(without(FOURTH, name), in_float64(eagle3_tensors(FOURTH)), states, TOKENS)
    found = apply(head, variables, states, TOKENS)
    assert np.abs(np.asarray(found.hidden[0]) - x).max() > 0.05


@pytest.mark.parametrize(
    ("file", "prefix"), [("medusa_lm_head.pt", ""), ("medusa_lm_head.safetensors", "medusa_head.")]
)
def test_medusa_heads_compute_what_the_authors_do(tmp_path, file, prefix):
    tensors = medusa_tensors(prefix)
    folder = save_head(tmp_path / "head", tensors, {"medusa_num_heads": 2}, file)
    head, variables = published.read(folder, TARGET)
    check_saving(tmp_path / "saved", head, variables)
    states = normal(5, E, seed=3)
    scores = jax.jit(head.apply)(variables, jnp.asarray(states)[None])
    names = [[f"{prefix}{number}.{block}.linear" for block in range(2)] for number in range(3)]
    blocks = [[(tensors[f"{n}.weight"], tensors[f"{n}.bias"]) for n in chain] for chain in names]
    matrices = [tensors[f"{prefix}{number}.2.weight"] for number in range(3)]
    want = [medusa.scores(state, blocks, matrices) for state in states]
    np.testing.assert_allclose(scores[0], want, rtol=2e-4, atol=2e-4)


def test_taps_are_the_states_that_enter_layers(tmp_path):
    head, _, target = heads.load(save_layout(tmp_path / "head", "cnets"), TARGET)
    assert head.config.taps == (2, 3, 3)
    run = tiny.forward(target.model, TARGET.params, tiny.PROMPTS[:1])
    # A model cut below a layer, its last norm undone, ends with what enters that layer.
    for place, tap in enumerate(head.config.taps):
        cut = tiny.model(num_layers=tap)
        params = TARGET.params["params"] | {"norm": {"scale": jnp.ones(E)}}
        last = tiny.forward(cut, {"params": params}, tiny.PROMPTS[:1]).hidden
        found = run.hidden[..., place * E : (place + 1) * E]
        np.testing.assert_allclose(norm(found, 1), last, rtol=1e-5, atol=1e-5)
    plain = tiny.forward(MODEL, TARGET.params, tiny.PROMPTS[:1])
    np.testing.assert_array_equal(run.logits, plain.logits)
    with pytest.raises(ValueError, match=r"taps has layer 6 and the model has layers 0 \.\. 5"):
        MODEL.clone(taps=(6,))


def test_taps_and_windows_are_the_configs(tmp_path):
    """EAGLE-4's taps are outputs, as SGLang has them; EAGLE-3's are inputs, as vLLM does."""

    def config(tensors, fields):
        return published.read(save_head(tmp_path / "head", tensors, fields), TARGET)[0].config

    ids, cnets = "eagle_aux_hidden_state_layer_ids", HEADS["cnets"][1]
    assert config(cnets, {"eagle_config": {ids: [1, 3, 5]}}).taps == (1, 3, 5)
    for fields in ({ids: [1, 3, 4]}, {ids: [1, 3, 4], "eagle_config": {ids: []}}):
        assert config(cnets, fields).taps == (1, 3, 4)
    for name, taps in (("1", ()), ("3.1", (2, 3, 3)), ("4", (1, 3, 5))):
        assert heads.load(save_layout(tmp_path / name, name), TARGET).target.model.taps == taps
    third = THIRD | {"eagle_config": FOURTH["eagle_config"]}
    assert config(eagle3_tensors(THIRD), third).taps == (0, 2, 4)
    assert config(eagle3_tensors(FOURTH), FOURTH).layers[0].window == 3
    assert config(eagle3_tensors(FOURTH), without(FOURTH, "layer_types")).layers[0].window == 3
    free = without(FOURTH, "layer_types", "sliding_window")
    assert config(eagle3_tensors(FOURTH), free).layers == ()


def test_factors_that_are_not_there_are_the_svd(tmp_path):
    tensors = {name: x for name, x in eagle3_tensors(FOURTH).items() if "efficient" not in name}
    _, variables = published.read(save_head(tmp_path / "head", tensors, FOURTH), TARGET)
    left, values, right = np.linalg.svd(tensors["lm_head.weight"].astype(np.float64))
    best = (left[:, :RANK] * values[:RANK]) @ right[:RANK]
    found = variables["candidates"]
    np.testing.assert_allclose(found["up"] @ found["down"], best, atol=1e-5)


def test_the_targets_head_scores_the_tokens_of_a_list(tmp_path):
    tensors = without(eagle3_tensors({}), "lm_head.weight")
    states = normal(7, 3 * E, seed=3)
    found, want = (
        apply(*published.read(save_head(tmp_path / name, one), TARGET), states, TOKENS).logits[0]
        for name, one in (("listed", tensors | {"d2t": SOME["d2t"]}), ("all", tensors))
    )
    np.testing.assert_allclose(found[:, IDS], want[:, IDS], rtol=1e-5, atol=1e-5)
    assert np.isneginf(np.delete(np.asarray(found), IDS, axis=1)).all()


@pytest.mark.parametrize("name", ["1", "cnets", "medusa"])
def test_a_head_of_another_kind_or_target_is_refused(tmp_path, name):
    kind, folder = HEADS[name][0], save_layout(tmp_path / "head", name)
    wanted = "eagle" if kind != "eagle" else "eagle3"
    for target, only, why in (
        (TARGET, wanted, f"holds a head of kind {kind} and one of kind {wanted} is"),
        (other(vocab_size=29), None, r"vocabulary of 23 tokens and the target has 29|\[23, 16\]"),
        (other(hidden_size=20), None, r"reads states of width \d+ and the target's have|\[23, 16"),
    ):
        with pytest.raises(ValueError, match=why):
            heads.load(folder, target, only=only)


def test_a_copy_of_other_embeddings_tells_another_model(tmp_path):
    folder = save_layout(tmp_path / "head", "1")
    with pytest.warns(UserWarning, match=r"embeddings of its own, \d+% away .*another model"):
        heads.load(folder, other())
    half = {"embed_tokens.weight": EMBED.astype(np.float16)}
    heads.load(save_head(tmp_path / "half", eagle_tensors() | half), TARGET)


def test_misfits_are_refused(tmp_path):
    low = {"type": "low_rank", "rank": 17, "num_candidates": 4}
    weighted = {"type": "weighted_low_rank", "rank": RANK, "num_candidates": COUNT}
    eagle, cnets, fourth = eagle_tensors(), HEADS["cnets"][1], eagle3_tensors(FOURTH)
    bare = without(fourth, "efficient_lm_head_down_proj.weight", "efficient_lm_head.weight")
    taps = {"eagle_aux_hidden_state_layer_ids": "all"}
    cases = [
        (eagle | {"embed_tokens.weight": EMBED[:-1]}, {}, r"of shape \[22, 16\] and the target's"),
        (eagle | {"layers.1.mlp.up_proj.weight": EMBED}, {}, r"1 tensor \(layers\.1.* no place"),
        (eagle | {"fc.weight": normal(E, 3 * E)}, {}, r"fc\.weight .* \[16, 48\], .*\[16, 32\]"),
        (cnets | {"d2t": np.arange(9) + 10}, {}, "maps draft tokens to ids 10 .. 26"),
        (cnets, {"parallel_drafting": True}, "parallel_drafting = True, which jspec does not"),
        (without(cnets, "norm.weight"), {}, "lacks 1 tensor .norm.weight"),
        ({"0.0.linear.weight": EMBED, "0.0.linear.bias": EMBED}, {}, "lacks 0.0.weight, the last"),
        ({"model.embed_tokens.weight": EMBED}, {}, "holds no draft head that is known"),
        (fourth, FOURTH | {"attn_norm": True}, "attn_norm = True, which jspec does not implement"),
        (fourth, FOURTH | {"twice_as_good": 1}, "the field 'twice_as_good', which an EAGLE-4 head"),
        (fourth, FOURTH | {"efficient_lm_head_config": {"type": "tree"}}, "type = 'tree', which"),
        (fourth, FOURTH | {"efficient_lm_head_config": low}, r"rank is 17; pass an .* 0 \.\. 16"),
        (bare, FOURTH | {"efficient_lm_head_config": weighted}, "type = 'weighted_low_rank', whi"),
        (fourth, FOURTH | {"eagle_config": taps}, "layer numbers"),
        (fourth, FOURTH | {"sliding_window": 0}, "sliding_window = 0"),
        (without(fourth, "fc_norm.1.weight"), FOURTH, r"lacks 1 tensor \(fc_norm.1.weight\)"),
        (fourth, FOURTH | {"fc_norm": False}, r"holds 3 tensors \(fc_norm.0.weight.* no place"),
        (without(fourth, "efficient_lm_head.weight"), FOURTH, "head.weight in shape None"),
        (fourth, FOURTH | {"hidden_size": 8}, "of a head that reads states of width 24"),
    ]  # fmt: skip
    for number, (tensors, config, why) in enumerate(cases):
        with pytest.raises(ValueError, match=why):
            heads.load(save_head(tmp_path / str(number), tensors, config), TARGET)


def test_damaged_files_are_refused(tmp_path):
    folder = save_layout(tmp_path / "head", "1")
    file = folder / "pytorch_model.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"not a whole archive of torch\.save"):
        heads.load(folder, TARGET)
    file.unlink()
    with pytest.raises(ValueError, match="has no weights"):
        heads.load(folder, TARGET)
    file.write_bytes(whole)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json; download"):
        heads.load(folder, TARGET)
    with pytest.raises(ValueError, match="is not a folder"):
        heads.load(tmp_path / "none", TARGET)
