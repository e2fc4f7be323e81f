"""The context and the stretch of published models, by the fields of their config.json."""

import numpy as np

from jspec.models.huggingface import families
from jspec.models.huggingface.config_json import Settings
from jspec.models.rope import frequencies

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 512,
    "intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
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
    ("DeepSeek Coder 6.7B", "llama", 16384, 1e5, linear(4.0), {}, 16384),
    ("Yarn Llama 2 7B 128k", "llama", 4096, 1e4, yarn(32.0, 4096, finetuned=True), {}, 131072),
    ("Yarn Mistral 7B 128k", "mistral", 32768, 1e4, yarn(16.0, 8192), {}, 131072),
    ("SmolLM2 1.7B", "llama", 8192, 130000.0, None, {}, 8192),
    ("Dynamic", "llama", 4096, 1e4, {"type": "dynamic", "factor": 2.0}, {}, 4096),
    ("Mistral 7B v0.3", "mistral", 32768, 1e6, None, {"sliding_window": None}, 32768),
    ("Qwen2.5 7B", "qwen2", 32768, 1e6, None, {}, 32768),
    ("Qwen2.5 7B, as its card says", "qwen2", 32768, 1e6, yarn(4.0), {}, 131072),
    ("Qwen2.5 7B, both edited", "qwen2", 131072, 1e6, yarn(4.0), {}, 131072),
    ("Qwen2.5, of old", "qwen2", 32768, 1e6, yarn(4.0, None), {}, 131072),
    ("QwQ 32B", "qwen2", 40960, 1e6, yarn(4.0), {}, 131072),
    ("Qwen3 8B, as its card says", "qwen3", 40960, 1e6, yarn(4.0), {}, 131072),
    ("Qwen3-Next", "qwen3_next", 262144, 1e7, yarn(4.0, 262144), {}, 1048576),
    ("SmolLM3 3B", "smollm3", 65536, 5e6, yarn(2.0, 65536), {}, 131072),
    ("OLMo 2 7B", "olmo2", 4096, 5e5, None, {}, 4096),
    ("Phi-3-mini 4k", "phi3", 4096, 1e4, None, TRAINED, 4096),
    ("Phi-3-mini 128k", "phi3", 131072, 1e4, LONG, TRAINED, 4096),
    ("Phi-3-mini 128k, first", "phi3", 131072, 1e4, LONG | {"type": "su"},
     TRAINED, 4096),
    ("Phi-4-mini", "phi3", 131072, 1e4, LONG | PART,
     TRAINED | {"partial_rotary_factor": 0.75}, 4096),
    ("Phi-4", "phi3", 16384, 250000.0, None, {"original_max_position_embeddings": 16384}, 16384),
    ("Pythia, stretched", "gpt_neox", 2048, 1e4, linear(2.0), {"rotary_pct": 1.0}, 4096),
    ("Gemma 2 9B", "gemma2", 8192, 1e4, None, {}, 8192),
    ("Gemma 3 4B", "gemma3_text", 131072, 1e6, linear(8.0), {"sliding_window": 1024}, 131072),
    ("Gemma 3 1B", "gemma3_text", 32768, 1e6, None, {"sliding_window": 512}, 32768),
    ("DeepSeek-V2-Lite", "deepseek_v2", 163840, 1e4, yarn(40, 4096, **DEEPSEEK), LATENT, 163840),
    ("DeepSeek-V3", "deepseek_v3", 163840, 1e4, yarn(40, 4096, **DEEPSEEK), LATENT, 163840),
    ("gpt-oss-20b", "gpt_oss", 131072, 15e4, yarn(32.0, 4096, truncate=False),
     {"num_local_experts": 4}, 131072),
)  # fmt: skip


def parse(values: dict):
    settings = Settings(values, "config.json")
    return families.find(settings).parse(settings)


def test_published_models_have_the_context_that_they_are_published_with():
    """In the fields of transformers 4, of transformers 5, and in new ones edited as cards say."""
    for name, kind, most, theta, stretch, more, context in PUBLISHED:
        shared = SHAPE | {"model_type": kind, "max_position_embeddings": most} | more
        old = parse(shared | {"rope_theta": theta, "rope_scaling": stretch})
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
        assert parse(shared | {"rope_parameters": new}) == old, name
        assert parse(shared | {"rope_parameters": plain, "rope_scaling": stretch}) == old, name


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
        fields = {"model_type": "llama", "max_position_embeddings": most, "rope_scaling": stretch}
        assert parse(SHAPE | fields).context == context


def test_a_longer_context_leaves_the_frequencies_as_they_are():
    short, long = (
        parse(
            SHAPE
            | {"model_type": "qwen2", "max_position_embeddings": most, "rope_scaling": yarn(4.0)}
        )
        for most in (32768, 131072)
    )
    assert short == long
    found = frequencies(short.rope, 128, short.context)
    plain = 10000.0 ** -(np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose((found / plain)[[0, -1]], [1, 1 / 4], rtol=1e-5)
