"""config.json of Gemma 2 and Gemma 3, the text models."""

from jspec.models.huggingface import rope_fields
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.llama import kinds, shape, window
from jspec.models.llama import LlamaConfig
from jspec.models.rope import Rope


def gemma2(settings: Settings) -> LlamaConfig:
    slides = kinds(
        settings, [not layer % 2 for layer in range(settings.count("num_hidden_layers"))]
    )
    size = window(settings, 4096)
    return _gemma(
        settings,
        context=settings.size("max_position_embeddings", 8192),
        windows=[size if slide else None for slide in slides],
        attention_cap=cap(settings, "attn_logit_softcapping", 50.0),
        logit_cap=cap(settings, "final_logit_softcapping", 30.0),
    )


def gemma3(settings: Settings) -> LlamaConfig:
    """Reads models in which five of six layers have a window and their own rotary base."""
    pattern = settings.size("sliding_window_pattern", 6)
    layers = range(1, settings.count("num_hidden_layers") + 1)
    slides = kinds(settings, [layer % pattern > 0 for layer in layers])
    size = window(settings, 4096)
    near, far = _rotary(settings)
    return _gemma(
        settings,
        context=settings.size("max_position_embeddings", 131072),
        windows=[size if slide else None for slide in slides],
        rotary=[near if slide else far for slide in slides],
        attention_cap=cap(settings, "attn_logit_softcapping", None),
        logit_cap=cap(settings, "final_logit_softcapping", None),
        qk_norm=True,
    )


def _gemma(settings: Settings, context: int, **differences) -> LlamaConfig:
    settings.choice("use_bidirectional_attention", [False], False)
    bias = settings.flag("attention_bias", False)
    return shape(
        settings,
        context,
        kv_heads=4,
        head_dim=256,
        qkv_bias=bias,
        output_bias=bias,
        post_norm=True,
        norm_offset=1.0,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        embed_scale=settings.size("hidden_size") ** 0.5,
        attention_scale=settings.number("query_pre_attn_scalar", 256.0) ** -0.5,
        tied=True,
        **differences,
    )


def _rotary(settings: Settings) -> tuple[Rope, Rope]:
    """Returns the fields of layers with a window, and of the others."""
    parameters, head_dim = settings.part("rope_parameters"), settings.size("head_dim", 256)
    if "full_attention" in parameters.values or "sliding_attention" in parameters.values:
        near, far = parameters.part("sliding_attention"), parameters.part("full_attention")
        bases = near.number("rope_theta", 10000.0), far.number("rope_theta", 1e6)
        # The old field means the others, in a new file too.
        far = settings.part("rope_scaling") if settings.get("rope_scaling") else far
        stretches = [rope_fields.scaling(part, settings, head_dim) for part in (near, far)]
        return Rope(bases[0], stretches[0]), Rope(bases[1], stretches[1])
    far = Rope(
        settings.number("rope_theta", 1e6),
        rope_fields.scaling(settings.part("rope_scaling"), settings, head_dim),
    )
    return Rope(settings.number("rope_local_base_freq", 10000.0)), far


def cap(settings: Settings, name: str, absent: float | None) -> float | None:
    """Returns a soft cap; null means no cap."""
    if settings.get(name) is not None:
        return settings.number(name)
    return None if name in settings.values else absent
