"""config.json of OLMo 2 and SmolLM3."""

from jspec._validate.errors import InputError
from jspec.models.huggingface import rope_fields
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.llama import kinds, shape, window
from jspec.models.llama import LlamaConfig


def olmo2(settings: Settings) -> LlamaConfig:
    """Returns norms behind attention and MLP, and one over all heads of queries and of keys."""
    bias = settings.flag("attention_bias", False)
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 2048),
        kv_heads=settings.size("num_attention_heads"),
        eps=1e-5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        qk_norm_joint=True,
        pre_norm=False,
        post_norm=True,
    )


def smollm3(settings: Settings) -> LlamaConfig:
    """SmolLM3, in which every fourth layer has no positions, and perhaps a window."""
    count = settings.count("num_hidden_layers")
    each = settings.size("no_rope_layer_interval", 4)
    usual = [(layer + 1) % each for layer in range(count)]
    turned = settings.list_of("no_rope_layers", int, usual)[:count]
    slides = settings.flag("use_sliding_window", False)
    size = window(settings, None) if slides else None
    sliding = kinds(settings, [not turn for turn in turned])
    if settings.get("layer_types") is not None and any(sliding) and not slides:
        raise InputError(
            f"{settings.source} has layers of type 'sliding_attention' and use_sliding_window "
            "false; correct one of them"
        )
    bias = settings.flag("attention_bias", False)
    heads = settings.size("num_attention_heads")
    head_dim = settings.size("head_dim", settings.size("hidden_size") // heads)
    rope = rope_fields.read(settings, head_dim, 2e6)
    return shape(
        settings,
        context=settings.size("max_position_embeddings", 32768),
        # Absent is 4 here, while null is one key-value head for every head.
        kv_heads=heads if "num_key_value_heads" in settings.values else 4,
        rotary=[rope if turn else None for turn in turned],
        windows=[size if slide else None for slide in sliding],
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=settings.flag("mlp_bias", False),
        tied=True,
    )
