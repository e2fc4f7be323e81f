"""Published block heads, written small in each layout, against the oracle's forward."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import published_heads
import pytest
import tiny
from oracle import block_drafter as oracle
from published_heads import (
    EMBED,
    HEAD,
    IDS,
    LAYERS,
    SHAPE,
    TARGET,
    check_saving,
    other,
    without,
    write,
)  # fmt: skip

import jspec
import jspec.models
from jspec.models import heads
from jspec.models.heads import published

V, E, DRAFT, BLOCK, RANK = tiny.VOCAB, 16, 9, 4, 3
HEADS, KV, D, INNER = 4, 2, 8, 24  # HEADS * D is not E
THETA, EPS = 5000.0, 1e-5
normal = partial(published_heads.normal, scale=0.4)
SCORED = np.array(IDS)
LAYER = SHAPE | {"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": D}
ZLAB = LAYER | dict(
    architectures=["DFlashDraftModel"], auto_map={"AutoModel": "dflash.DFlashDraftModel"},
    block_size=BLOCK, num_target_layers=LAYERS, layer_types=["full_attention"] * 2,
    dflash_config={"target_layer_ids": [1, 3], "mask_token_id": 7},
)  # fmt: skip
DEEPSEEK = LAYER | dict(
    architectures=["Qwen3DSparkModel"], block_size=BLOCK, num_target_layers=LAYERS,
    target_layer_ids=[-1, 3], mask_token_id=7, markov_rank=RANK, markov_head_type="vanilla",
    enable_confidence_head=True, confidence_head_with_markov=True,
)  # fmt: skip
SPECULATORS = dict(
    speculators_model_type="dspark", architectures=["DSparkDraftModel"],
    transformer_layer_config=LAYER, block_size=BLOCK, aux_hidden_state_layer_ids=[2, 4],
    mask_token_id=7, draft_vocab_size=DRAFT, markov_rank=RANK, enable_confidence_head=True,
)  # fmt: skip


def backbone():
    tensors = {"fc.weight": normal(E, 2 * E)}
    tensors |= {f"{n}.weight": 1 + normal(E, seed=i) for i, n in enumerate(("hidden_norm", "norm"))}
    for layer in range(2):
        name, seed = f"layers.{layer}.", 9 * layer
        for i, (part, out) in enumerate({"q": HEADS * D, "k": KV * D, "v": KV * D}.items()):
            tensors[f"{name}self_attn.{part}_proj.weight"] = normal(out, E, seed=i + seed)
        tensors[f"{name}self_attn.o_proj.weight"] = normal(E, HEADS * D, seed=layer)
        tensors[f"{name}mlp.down_proj.weight"] = normal(E, INNER, seed=layer)
        for i in range(2):
            tensors[f"{name}self_attn.{'qk'[i]}_norm.weight"] = 1 + normal(D, seed=i + seed)
            part = ("gate", "up")[i]
            tensors[f"{name}mlp.{part}_proj.weight"] = normal(INNER, E, seed=i + seed)
            part = ("input", "post_attention")[i]
            tensors[f"{name}{part}_layernorm.weight"] = 1 + normal(E, seed=5 + i + seed)
    return tensors


def markov(size=V):
    return {
        "markov_head.markov_w1.weight": normal(V, RANK),
        "markov_head.markov_w2.weight": normal(size, RANK, seed=1),
    }


def confidence(width):
    return {"confidence_head.proj.weight": normal(1, width), "confidence_head.proj.bias": normal(1)}


def dspark():
    tables = {"embed_tokens.weight": EMBED, "lm_head.weight": HEAD}
    return backbone() | tables | markov() | confidence(E + RANK)


def speculators():
    scored = np.isin(np.arange(V), SCORED)
    ids = {"d2t": SCORED - np.arange(DRAFT), "t2d": scored}
    tables = {"embed_tokens.weight": EMBED, "lm_head.weight": normal(DRAFT, E)}
    return backbone() | tables | ids | markov(DRAFT) | confidence(E)


PLAIN = ("markov_rank", "enable_confidence_head", "draft_vocab_size", "confidence_head_with_markov")
JETSPEC = ZLAB | {"dflash_config": ZLAB["dflash_config"] | {"causal_head": True}}
LAYOUTS = {
    # name: tensors, config, (first slot, causal, taps)
    "z-lab": (backbone(), ZLAB, (1, False, (2, 4))),
    "deepseek-ai": (dspark(), DEEPSEEK, (0, False, (0, 4))),
    "speculators": (speculators(), SPECULATORS, (0, False, (2, 4))),
    "JetSpec": (backbone(), JETSPEC, (1, True, (2, 4))),
    "deepseek-ai's DFlash": (
        backbone() | {"embed_tokens.weight": EMBED, "lm_head.weight": HEAD},
        without(DEEPSEEK, *PLAIN) | {"markov_rank": 0}, (0, False, (0, 4))),
    "speculators' DFlash": (
        backbone() | {"embed_tokens.weight": EMBED, "lm_head.weight": normal(V, E)},
        without(SPECULATORS, *PLAIN) | {"speculators_model_type": "dflash"}, (1, False, (2, 4))),
}  # fmt: skip


def as_the_oracle_reads(tensors, first_slot, causal):
    """By its own names of a layer's parts."""
    norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    places = {part: f"self_attn.{part}_proj" for part in "qkvo"} | norms
    places |= {f"{part}_norm": f"self_attn.{part}_norm" for part in "qk"}
    places |= {part: f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    layers = [
        {name: tensors[f"layers.{number}.{place}.weight"] for name, place in places.items()}
        for number in range(2)
    ]
    return dict(
        fc=tensors["fc.weight"], state_norm=tensors["hidden_norm.weight"], layers=layers,
        norm=tensors["norm.weight"], mask=EMBED[7],
        first=tensors.get("markov_head.markov_w1.weight"),
        second=tensors.get("markov_head.markov_w2.weight"), heads=HEADS, kv_heads=KV, theta=THETA,
        eps=EPS, block=BLOCK, skipped=first_slot, causal=causal,
    )  # fmt: skip


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("z-lab", "speculators")))
        for name in LAYOUTS
    ],
)
def test_a_published_head_computes_what_its_authors_does(tmp_path, layout):
    tensors, config, (first_slot, causal, taps) = LAYOUTS[layout]
    head, variables, target = heads.load(write(tmp_path / "head", tensors, config), TARGET)
    assert head.config.taps == target.model.taps == taps
    known = as_the_oracle_reads(tensors, first_slot, causal)
    states = normal(5, 2 * E)
    wanted = oracle.states(known, states, EMBED[3])
    tokens = np.array([4, 1, 20, 9])[: len(wanted)]

    @jax.jit
    def run(variables, states):
        found = head.apply(
            variables, states[None], jnp.array([[3]]), jnp.array([[5]]), jnp.ones((1, 1, 5), bool)
        )[0]
        scores = head.inform(variables, head.score(variables, found), tokens[None])
        return found[0], scores[0]

    found, scores = run(variables, jnp.asarray(states))
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
    ids = SCORED if "d2t" in tensors else np.arange(V)
    after = oracle.scores(known, wanted, tensors.get("lm_head.weight", HEAD))
    for depth, token in enumerate(tokens):
        np.testing.assert_allclose(scores[depth], after(depth, token), rtol=5e-4, atol=5e-4)
    assert head.scored(variables).tolist() == ids.tolist()
    check_saving(tmp_path / "saved", head, variables)


def test_taps_follow_the_rule_where_the_config_is_silent(tmp_path):
    config = ZLAB | {"dflash_config": {"mask_token_id": 7}}
    head, _ = published.read(write(tmp_path / "head", backbone(), config), TARGET)
    assert head.config.taps == (2, 4)  # layers 1 and 3, by what they give


def inner(**changes):
    return {"dflash_config": ZLAB["dflash_config"] | changes}


def test_misfits_are_refused(tmp_path):
    for layout, changes, why in (
        ("z-lab", {"block_size": 1}, "block_size = 1; a block has at least 2 slots"),
        ("z-lab", {"block_size": None}, "has no field 'block_size'"),
        ("z-lab", inner(mask_token_id=23), r"mask_token_id = 23 and the target's tokens are 0 .."),
        ("z-lab", inner(mask_token_id=None), r"mask_token_id = None and the target's tokens are"),
        ("z-lab", inner(target_layer_ids=[3, 1]), r"reads layers \[4, 2\], which do not rise"),
        ("z-lab", inner(target_layer_ids=[1, 5]), "taps has layer 6 and the model has layers"),
        ("z-lab", inner(target_layer_ids=[1, 2, 3]), r"states of width 48|shape \[16, 32\]"),
        ("z-lab", inner(target_layer_ids="all"), "has to be a list of layers' numbers"),
        ("z-lab", inner(projector_type="domino"), "projector_type = 'domino', which jspec does"),
        ("z-lab", inner(use_swa=True), "use_swa = True, which jspec does not implement"),
        ("z-lab", inner(draft_shift=True), "draft_shift = True, which jspec does not implement"),
        ("z-lab", {"layer_types": ["sliding_attention"] * 2}, "layer of type 'sliding_attention'"),
        ("z-lab", {"hidden_act": "mish"}, "hidden_act = 'mish', which jspec does not implement"),
        ("z-lab", {"model_type": "gemma4"}, "model_type = 'gemma4', which jspec does not"),
        ("z-lab", {"rope_scaling": {"type": "axial"}}, "type = 'axial', which jspec does not"),
        ("deepseek-ai", {"markov_rank": 5}, r"markov_w1\.weight .* shape \[23, 3\].* \[23, 5\]"),
        ("deepseek-ai", {"markov_rank": -1}, "markov_rank = -1; it has to be an integer of at"),
        ("deepseek-ai", {"markov_rank": 0}, "reads a Markov head and markov_rank = 0"),
        ("deepseek-ai", {"markov_head_type": "rnn"}, "markov_head_type = 'rnn', which jspec does"),
        ("deepseek-ai", {"enable_confidence_head": False}, "2 tensors .* no place for"),
        ("speculators", {"speculators_model_type": "eagle3"}, "speculators_model_type = 'eagle3'"),
        ("speculators", {"target_hidden_size": 20}, "for states 20 wide and the target's are 16"),
    ):
        tensors, config, _ = LAYOUTS[layout]
        with pytest.raises(jspec.InputError, match=why):
            heads.load(write(tmp_path / "head", tensors, config | changes), TARGET)
    for layout, target, why in (
        ("z-lab", other(vocab_size=29), "for a vocabulary of 23 tokens and the target has 29"),
        ("z-lab", other(hidden_size=20), "a head for states 16 wide and the target's are 20"),
        ("z-lab", other(num_layers=5), "for a target of 6 layers and this one has 5; load"),
        ("speculators", other(num_layers=4), r"taps has layer 4 and the model has layers 0 \.\. 3"),
        ("deepseek-ai", other(), r"trained on other embeddings than this target's \(\d+% away\)"),
        ("speculators", other(), r"trained on other embeddings than this target's \(\d+% away\)"),
    ):
        tensors, config, _ = LAYOUTS[layout]
        with pytest.raises(jspec.InputError, match=why):
            heads.load(write(tmp_path / "head", tensors, config), target)
    for tensors, why in (
        (dspark() | {"lm_head.weight": HEAD[::-1]}, "trained on other scores than this target's"),
        (dspark() | {"selector.weight": HEAD}, r"1 tensor \(selector\.weight\) that .* no place"),
        (without(dspark(), "norm.weight"), r"lacks 1 tensor \(norm\.weight\) of a head of kind"),
    ):
        with pytest.raises(jspec.InputError, match=why):
            heads.load(write(tmp_path / "head", tensors, DEEPSEEK), TARGET)
