"""The small configurations whose logits are compared with those of `transformers`."""

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
OPT = {("ffn_dim" if key == "intermediate_size" else key): size for key, size in SHAPE.items()}
STRETCH = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}

GEMMA = SHAPE | {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 6,
    "hidden_activation": "gelu_pytorch_tanh",
}

GEMMA4 = GEMMA | {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "global_head_dim": 16,
    "final_logit_softcapping": 30.0,
}

# Sizes at which float32 is within 1e-4 of float64, in `transformers` as here: a random
# delta net may have a head whose values all but cancel, and its norm makes them large.
DELTA_NETS = SHAPE | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
DELTA_NETS_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 16,
}

VARIANTS = {
    "llama2": ("llama", SHAPE),
    "llama_biases_grouped_tied": (
        "llama",
        SHAPE
        | {
            "num_key_value_heads": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "llama31": (
        "llama",
        # Heads wide enough to have slowed, interpolated and kept frequencies.
        SHAPE
        | {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_parameters": STRETCH,
        },
    ),
    "mistral": ("mistral", SHAPE | {"num_key_value_heads": 2, "sliding_window": 6}),
    "qwen2": ("qwen2", SHAPE | {"num_key_value_heads": 2}),
    "qwen3": (
        "qwen3",
        SHAPE | {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True},
    ),
    "opt": ("opt", OPT),
    "opt_norms_behind_projected": (
        "opt",
        OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 8},
    ),
    "opt_plain": (
        "opt",
        OPT
        | {
            "activation_function": "gelu",
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
        },
    ),
    "gpt2": (
        "gpt2",
        {
            "vocab_size": 64,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "n_inner": 32,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gemma2": (
        "gemma2",
        GEMMA | {"query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": (
        "gemma3_text",
        GEMMA
        | {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    # As E2B: of two kinds of heads, and later layers that read the keys of others.
    "gemma4": (
        "gemma4_text",
        GEMMA4
        | {
            "num_hidden_layers": 6,
            "layer_types": 2 * GEMMA4["layer_types"],
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 64,
        },
    ),
    # As 26B-A4B: experts alongside the MLP, and values that are keys.
    "gemma4_moe": (
        "gemma4_text",
        GEMMA4
        | {
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 8,
        },
    ),
    # As 12B.
    "gemma4_unified": (
        "gemma4_unified_text",
        GEMMA4 | {"num_global_key_value_heads": 1, "attention_k_eq_v": True},
    ),
    "phi3": (
        "phi3",
        SHAPE
        | {
            "num_key_value_heads": 2,
            "original_max_position_embeddings": 32,
            "pad_token_id": 0,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.1],
                "long_factor": [4.0],
            },
        },
    ),
    "olmo2": ("olmo2", SHAPE | {"num_key_value_heads": 2}),
    "smollm3": (
        "smollm3",
        SHAPE
        | {
            "num_key_value_heads": 2,
            "no_rope_layers": [1, 0],
            "pad_token_id": 0,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "mixtral": (
        "mixtral",
        SHAPE
        | {
            "num_key_value_heads": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 6,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        SHAPE
        | {
            "num_key_value_heads": 2,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "mlp_only_layers": [0],
        },
    ),
    "deepseek_v2": (
        "deepseek_v2",
        # DeepSeek-V2-Lite has no latent vector of queries.
        SHAPE
        | LATENT
        | {
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "q_lora_rank": None,
            "attention_bias": True,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 8,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 4.0,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        SHAPE
        | LATENT
        | {
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "q_lora_rank": 12,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 8,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 0.7,
                "mscale_all_dim": 1.0,
            },
        },
    ),
    "glm4_moe": (
        "glm4_moe",
        SHAPE
        | {
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 8,
            "routed_scaling_factor": 1.5,
        },
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        SHAPE
        | LATENT
        | {
            "num_hidden_layers": 3,
            "mlp_layer_types": ["dense", "sparse", "dense"],
            "q_lora_rank": 12,
            "rope_interleave": False,
            "n_routed_experts": 8,
            "moe_intermediate_size": 8,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        SHAPE
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 8,
            "sliding_window": 6,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            # One that the gates of so small a model reach.
            "swiglu_limit": 1.5,
        },
    ),
    "qwen3_next": (
        "qwen3_next",
        DELTA_NETS | DELTA_NETS_EXPERTS | {"mlp_only_layers": [2]},
    ),
    # Most layers are gated delta nets, whose projections are stored part by part.
    "qwen3_5": ("qwen3_5_text", DELTA_NETS),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {key: value for key, value in DELTA_NETS.items() if key != "intermediate_size"}
        | DELTA_NETS_EXPERTS,
    ),
    "granite4": (
        "granitemoehybrid",
        SHAPE
        | {
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "intermediate_size": 8,
            "shared_intermediate_size": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "embedding_multiplier": 1.5,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
            "position_embedding_type": "rope",
        },
    ),
    "granite4_dense": (
        "granitemoehybrid",
        SHAPE
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 16,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_conv_bias": False,
        },
    ),
    "pythia": ("gpt_neox", SHAPE | {"rope_parameters": {"partial_rotary_factor": 0.5}}),
}
"""Name to (model type, fields of its config)."""
