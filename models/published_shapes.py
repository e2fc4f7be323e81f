"""Shapes of published models from their config.json, for planning."""

from types import MappingProxyType
from typing import Any

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
}


def _llama(width: int, inner: int, layers: int, heads: int, **changes: Any) -> dict[str, Any]:
    sizes = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return _LLAMA | sizes | changes


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": layers,
        "num_local_experts": experts,
        "num_attention_heads": 64,
        "max_position_embeddings": 131072,
    }


SHAPES = MappingProxyType(
    {
        # Llama 3.2, whose heads are tied, and 3.1; Dubey et al. 2024, arXiv 2407.21783, table 3.
        "llama-1b": _llama(2048, 8192, 16, 32, head_dim=64, tie_word_embeddings=True),
        "llama-3b": _llama(3072, 8192, 28, 24, tie_word_embeddings=True),
        "llama-8b": _llama(4096, 14336, 32, 32),
        "llama-70b": _llama(8192, 28672, 80, 64),
        "llama-405b": _llama(16384, 53248, 126, 128),
        # Qwen3-Next-80B-A3B; its other sizes are those that an absent field means.
        "qwen3-next-80b": {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "max_position_embeddings": 262144,
            "rope_theta": 10000000.0,
        },
        # DeepSeek-V3 without its head for several tokens; arXiv 2412.19437, section 4.2.
        "deepseek-v3": {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "max_position_embeddings": 163840,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
            },
        },
        # Gemma 4 E2B: 2.3 billion weights alongside its per-layer embeddings.
        "gemma4-e2b": {
            "architectures": ["Gemma4ForCausalLM"],
            "model_type": "gemma4_text",
            "vocab_size": 262144,
            "hidden_size": 1536,
            "intermediate_size": 6144,
            "num_hidden_layers": 35,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "layer_types": [*4 * ["sliding_attention"], "full_attention"] * 7,
            "num_kv_shared_layers": 20,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 30.0,
        },
        # OpenAI 2025, arXiv 2508.10925, table 1.
        "gpt-oss-20b": _gpt_oss(24, 32),
        "gpt-oss-120b": _gpt_oss(36, 128),
    }
)
"""The fields of config.json, by the names that `jspec.models.shapes` takes."""
