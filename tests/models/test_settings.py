"""config.json of hub checkpoints, old and new, as our configs, and the contexts they say."""

import json

import numpy as np
import refusals

from jspec.models.huggingface import families
from jspec.models.huggingface.config_json import Settings
from jspec.models.rope import frequencies

LLAMA = dict(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=None, max_position_embeddings=64,
)  # fmt: skip

ABSENT = object()


def parse(kind, **fields):
    values = LLAMA | {"model_type": kind} | fields
    values = {name: value for name, value in values.items() if value is not ABSENT}
    settings = Settings(values, "config.json")
    return families.find(settings).parse(settings)


def test_with_long_rope_the_context_is_the_original_one():
    """In every family: the longer one has other divisors, for short texts too."""
    given = {"rope_type": "longrope", "original_max_position_embeddings": 32, "factor": 2.0}
    divisors = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}
    for kind in ("llama", "phi3"):
        assert parse(kind, rope_scaling=given | divisors).context == 32


def test_absent_fields_mean_what_they_mean_in_transformers():
    assert parse("llama").num_kv_heads == 4
    assert parse("llama").norm_eps == 1e-6
    wide = {"head_dim": 2, "num_attention_heads": 16}
    assert parse("mistral", **wide).num_kv_heads == 16
    assert parse("mistral", **wide, num_key_value_heads=ABSENT).num_kv_heads == 8
    assert parse("mistral", max_position_embeddings=8192).layers[0].window == 4096
    assert parse("qwen3").head_dim == 128
    assert parse("qwen2").qkv_bias
    assert not parse("qwen2").output_bias
    assert parse("gpt2", n_embd=24).intermediate_size == 96
    assert parse("opt", ffn_dim=32).tied
    latent = parse("deepseek_v3", q_lora_rank=None).latent
    assert (latent.rank, latent.query_rank, latent.value_dim) == (512, None, 128)
    assert parse("deepseek_v3", q_lora_rank=ABSENT).latent.query_rank == 1536
    oss = parse("gpt_oss", num_key_value_heads=2, max_position_embeddings=4096)
    assert oss.rope_theta == 150000 and oss.rope_scaling.factor == 32
    assert [layer.window for layer in oss.layers] == [128, None]


def test_layers_have_the_windows_that_slide_within_the_context():
    slides = {"sliding_window": 24, "use_sliding_window": True}
    near_last = {"layer_types": ["full_attention", "sliding_attention"]}
    for kind, fields, windows in (
        ("mistral", {"sliding_window": 24}, [24, 24]),
        ("mistral", {"sliding_window": 128}, []),
        ("mistral", {"sliding_window": None}, []),
        ("qwen2", {"sliding_window": 24}, []),
        ("qwen2", slides, []),
        ("qwen2", slides | {"max_window_layers": 1}, [None, 24]),
        ("qwen3", slides | near_last, [None, 24]),
    ):
        config = parse(kind, **fields)
        assert config.context == 64
        assert [layer.window for layer in config.layers] == windows


NEAR_FIRST = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
SU = {"type": "su", "long_factor": [1.0, 1.0]}
YARN = {"type": "yarn", "factor": 2.0, "mscale": "a", "mscale_all_dim": 1}
REFUSED = [
    ("qwen3", {"layer_types": ["chunked_attention"]}, "layer of type 'chunked_attention'"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "supported: False"),
    ("gpt2", {"n_embd": 20, "n_head": 3}, "n_head = 3, which does not divide 20"),
    ("opt", {"ffn_dim": 32, "activation_function": "mish"}, "supported: 'relu'"),
    ("llama", {"head_dim": 5}, "head_dim of 5, of which 5 are turned; .* an even one"),
    ("llama", {"rope_scaling": {"rope_type": "llama3"}}, "no field 'factor'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    *(("llama", {"rope_scaling": SU | {"short_factor": wrong}}, "short_factor = .*be 2 positive")
      for wrong in ([1.0], [1.0] * 3, ["a", 1.0], [0.0, 1.0], [1.0, float("inf")], 3)),
    ("smollm3", NEAR_FIRST, "layers of type 'sliding_attention' and use_sliding_window false"),
    ("mistral", NEAR_FIRST, "layer_types without a window"),
    ("llama", {"attention_bias": 1}, "attention_bias = 1; it has to be true or false"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps = 0; it has to be above 0"),
    ("llama", {"rope_parameters": [1]}, r"rope_parameters = \[1\]; it has to be an object"),
    ("llama", {"rms_norm_eps": float("inf")}, "rms_norm_eps = inf; it has to be above 0"),
    ("llama", {"architectures": {"a": 1}}, "architectures = .*; it has to be a list of str"),
    ("qwen3", {"layer_types": 3}, "layer_types = 3; it has to be a list of str"),
    ("qwen3", {"layer_types": [["a"]] * 2}, "layer_types = .*; it has to be a list of str"),
    ("smollm3", {"no_rope_layers": 3}, "no_rope_layers = 3; it has to be a list of int"),
    ("llama", {"rope_scaling": YARN}, "mscale = 'a'; it has to be above 0"),
    ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 3}, "num_chosen is 3; pass .* 2"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc', which jspec does"),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob = True, which jspec does not"),
    ("deepseek_v2", {"num_experts_per_tok": ABSENT}, "no field 'num_experts_per_tok'"),
    ("deepseek_v2", {"topk_method": "group_limited_greedy", "num_experts_per_tok": 2},
     "no field 'n_group'"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax', which jspec does"),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq = 2, which jspec does not"),
    ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads = 2, .* supported: 4"),
    ("deepseek_v3", {"first_k_dense_replace": -1}, "it has to be an integer of at least 0"),
    ("deepseek_v3", {"qk_rope_head_dim": 5}, "rotary_dim is 5, and lanes are turned"),
    ("deepseek_v3", {"n_group": 7}, "num_groups is 7, which does not divide the 256 experts"),
    ("glm4_moe_lite", {"mlp_layer_types": ["dense", "x"]}, "'dense' or 'sparse' for each of 2"),
    ("gpt_oss", {"hidden_act": "gelu", "head_dim": 8}, "hidden_act = 'gelu', which jspec does"),
    ("gpt_oss", {"layer_types": ["chunked_attention"] * 2}, "layer of type 'chunked_attention'"),
    ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit = 0; it has to be above 0"),
    ("gemma4_text", {"vocab_size_per_layer_input": 9}, "vocab_size_per_layer_input = 9, which"),
    *(("gemma4_text", {"hidden_size_per_layer_input": 0, "head_dim": 8} | fields, said)
      for fields, said in (
        ({"num_kv_shared_layers": 2}, "no layer before these is of the"),
        ({"num_kv_shared_layers": 1}, "is of the kind of layer 1, whose"),
        ({"use_bidirectional_attention": "all"}, "'all', which jspec does"),
        ({"per_layer_config": {"x": {}}}, "have to be numbers below 2"),
        ({"per_layer_config": {"1": {"head_dim": 7}}}, "head_dim = 7; rotary embeddings need an"),
        ({"per_layer_config": {"1": {"window": 7}}}, "'window', which jspec does not implement"),
    )),
]  # fmt: skip


def test_unimplemented_settings_are_refused():
    refusals.check(
        [((kind, fields), said) for kind, fields, said in REFUSED],
        lambda given: parse(given[0], **given[1]),
        ValueError,
    )


WIDE = dict(hidden_size=512, num_hidden_layers=6, num_key_value_heads=4, head_dim=128)
LATENT = {"kv_lora_rank": 8, "q_lora_rank": None, "head_dim": 64}
LATENT |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "topk_group": 1, "n_group": 1}


def llama3(factor: float) -> dict:
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return bands | {
        "factor": factor,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


def yarn(factor: float, original: int | None = 32768, **more) -> dict:
    start = {} if original is None else {"original_max_position_embeddings": original}
    return {"factor": factor, **start, "type": "yarn", **more}


def linear(factor: float) -> dict:
    return {"factor": factor, "type": "linear"}


LONG = {"long_factor": [4.0] * 64, "short_factor": [1.0] * 64, "type": "longrope"}
DEEPSEEK = {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}

TRAINED = {"original_max_position_embeddings": 4096}
PART = {f"{size}_factor": [2.0] * 48 for size in ("long", "short")}

# Name, model_type, max_position_embeddings, rope_theta, rope_scaling, what else there is, context.
PUBLISHED = (
    ("Llama 2 7B", "llama", 4096, 1e4, None, {}, 4096),
    ("Llama 3.1 8B", "llama", 131072, 5e5, llama3(8.0), {}, 131072),
    ("Vicuna 7B 16k", "llama", 4096, 1e4, linear(4.0), {"max_sequence_length": 16384}, 16384),
    ("LLaMA 2 7B 32K", "llama", 32768, 1e4, linear(8.0), {}, 32768),
    ("Yarn Llama 2 7B 128k", "llama", 4096, 1e4, yarn(32.0, 4096, finetuned=True), {}, 131072),
    ("Dynamic", "llama", 4096, 1e4, {"type": "dynamic", "factor": 2.0}, {}, 4096),
    ("Qwen2.5 7B, as its card says", "qwen2", 32768, 1e6, yarn(4.0), {}, 131072),
    ("Qwen2.5 7B, both edited", "qwen2", 131072, 1e6, yarn(4.0), {}, 131072),
    ("Qwen2.5, of old", "qwen2", 32768, 1e6, yarn(4.0, None), {}, 131072),
    ("QwQ 32B", "qwen2", 40960, 1e6, yarn(4.0), {}, 131072),
    ("Qwen3-Next", "qwen3_next", 262144, 1e7, yarn(4.0, 262144), {}, 1048576),
    ("Phi-3-mini 4k", "phi3", 4096, 1e4, None, TRAINED, 4096),
    ("Phi-3-mini 128k", "phi3", 131072, 1e4, LONG, TRAINED, 4096),
    ("Phi-3-mini 128k, first", "phi3", 131072, 1e4, LONG | {"type": "su"},
     TRAINED, 4096),
    ("Phi-4-mini", "phi3", 131072, 1e4, LONG | PART,
     TRAINED | {"partial_rotary_factor": 0.75}, 4096),
    ("Phi-4", "phi3", 16384, 250000.0, None, {"original_max_position_embeddings": 16384}, 16384),
    ("Pythia, stretched", "gpt_neox", 2048, 1e4, linear(2.0), {"rotary_pct": 1.0}, 4096),
    ("Gemma 3 4B", "gemma3_text", 131072, 1e6, linear(8.0), {"sliding_window": 1024}, 131072),
    ("DeepSeek-V2-Lite", "deepseek_v2", 163840, 1e4, yarn(40, 4096, **DEEPSEEK), LATENT, 163840),
    ("DeepSeek-V3", "deepseek_v3", 163840, 1e4, yarn(40, 4096, **DEEPSEEK), LATENT, 163840),
    ("gpt-oss-20b", "gpt_oss", 131072, 15e4, yarn(32.0, 4096, truncate=False),
     {"num_local_experts": 4}, 131072),
)  # fmt: skip


def test_published_models_have_the_context_that_they_are_published_with():
    """In the fields of transformers 4, of transformers 5, and in new ones edited as cards say."""
    for name, kind, most, theta, stretch, more, context in PUBLISHED:
        shared = WIDE | {"max_position_embeddings": most} | more
        old = parse(kind, **shared, rope_theta=theta, rope_scaling=stretch)
        assert old.context == context, name
        renamed = {
            "rope_type" if key == "type" else key: value for key, value in (stretch or {}).items()
        }
        new = {"rope_type": "default", "rope_theta": theta, **renamed}
        plain = {"rope_type": "default", "rope_theta": theta}
        if kind == "gemma3_text":
            near = {"rope_type": "default", "rope_theta": 1e4}
            new = {"full_attention": new, "sliding_attention": near}
            plain = {"full_attention": plain, "sliding_attention": near}
        assert parse(kind, **shared, rope_parameters=new) == old, name
        assert parse(kind, **shared, rope_parameters=plain, rope_scaling=stretch) == old, name


def test_a_stretch_says_what_it_was_stretched_from():
    """Else it is max_position_embeddings; a linear one of more than 8,192 is stretched already."""
    for stretch, most, context in (
        (linear(2.0), 8192, 16384),
        (linear(2.0), 8193, 8193),
        (linear(4.0) | {"original_max_position_embeddings": 32768}, 32768, 131072),
        (linear(4.0) | {"original_max_position_embeddings": 32768}, 131072, 131072),
        (linear(1.0), 4096, 4096),
        (linear(2.5), 64, 160),
        (linear(1e308), 8192, 2**31 - 1),
        (yarn(1e308, 64), 64, 2**31 - 1),
        (yarn(1.0, 64), 64, 64),
        (yarn(2.0, 64), 512, 512),
        (yarn(4.0, None), 64, 256),
    ):
        found = parse("llama", **WIDE, max_position_embeddings=most, rope_scaling=stretch)
        assert found.context == context


def test_a_longer_context_leaves_the_frequencies_as_they_are():
    short, long = (
        parse("qwen2", **WIDE, max_position_embeddings=most, rope_scaling=yarn(4.0))
        for most in (32768, 131072)
    )
    assert short == long
    found = frequencies(short.rope, 128, short.context)
    plain = 10000.0 ** -(np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose((found / plain)[[0, -1]], [1, 1 / 4], rtol=1e-5)


def test_every_fixture_is_a_family_of_its_own_name(fixtures):
    for folder in fixtures.iterdir():
        fields = json.loads((folder / "config.json").read_text())
        family = families.find(Settings(fields, str(folder)))
        assert (family.architecture, family.model_type) == (
            fields["architectures"][0],
            fields["model_type"],
        )
